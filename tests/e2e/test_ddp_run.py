"""A torchrun world of two nodes with two processes each: it starts, computes and ends."""

from __future__ import annotations

import re

from kube import Namespace, wait_until


def job_ended(space: Namespace) -> str | None:
    conditions = space.objects("jobs")[0].get("status", {}).get("conditions", [])
    return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), None)


def test_two_nodes_two_processes(namespace: Namespace) -> None:
    namespace.install("run", "ddp-run", "--set", "nodes=2", "--set", "procsPerNode=2")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 240) == "Complete"
    pods = namespace.pods("run")
    assert len(pods) == 2
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "one pod a node"
    ranks = set()
    for pod in pods:
        said = namespace.logs(pod["metadata"]["name"], "trainer")
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert f"is_host={'true' if index == '0' else 'false'}" in said
        assert f"[DONE] node={index} world=4" in said
        ranks |= set(re.findall(r"\[DDP\] node=\d rank=(\d) world=4 nodes=2 .* ok=true", said))
        assert len(re.findall(r"\[TRAIN\] .* improved=true", said)) == 2
    assert ranks == {"0", "1", "2", "3"}


def test_a_program_that_fails_fails_the_job_at_once(namespace: Namespace) -> None:
    namespace.install("run", "ddp-run", "--set", "program.args={-m,gpuworker.accept.ddp_tests,--no-such-flag}")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 120) == "Failed"


def test_a_master_that_does_not_resolve_is_named(namespace: Namespace) -> None:
    """The name of node 0 leads nowhere: an exit code of its own, and the name in the message."""
    namespace.install(
        "run", "ddp-run", "--set", "nodes=2", "--set", "rendezvous.timeoutSeconds=5",
        "--set", "env.MASTER_ADDR=nobody.invalid",
    )  # fmt: skip
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 120) == "Failed"
    messages = [
        state["terminated"]["message"]
        for pod in namespace.pods("run")
        for state in [pod["status"]["containerStatuses"][0]["state"]]
        if "terminated" in state and state["terminated"]["exitCode"] == 64
    ]
    assert messages and all("nobody.invalid did not resolve within 5 s" in message for message in messages)
