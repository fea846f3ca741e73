"""Groups of different programs, with the YAML of the JobGroup test plan as written (numbers are its rows)."""

from __future__ import annotations

import pytest
from kube import REPO, SEEDS, Namespace, by_host, jobgen, phases, run, task_started, wait_until

LAYOUTS = ("jobset", "jobs")


def launch(space: Namespace, file, *settings: str, name: str | None = None, release: str = "grp") -> str:
    """jobgen to-values FILE | helm install grp charts/job-group -f - ; returns the group's name."""
    renamed = ["--set-name", name] if name else []
    values = jobgen("to-values", str(file), *renamed)
    space.install(release, "job-group", *settings, values=values)
    return name or next(line.split()[1] for line in values.splitlines() if line.startswith("name:"))


def jobset_completed(space: Namespace, group: str):
    def terminal_state() -> str:
        found = space.objects("jobset", f"job-group/name={group}")
        return found[0].get("status", {}).get("terminalState", "") if found else ""

    return wait_until(terminal_state, f"JobSet of {group} ended") == "Completed"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_2_1_two_jobs_start_together_and_succeed(namespace: Namespace, layout: str) -> None:
    launch(namespace, SEEDS / "test_job_group.yaml", "--set", f"layout={layout}")
    pods = namespace.wait_for_end("grp", ranks=2)
    assert phases(pods) == {"job-a-0": "Succeeded", "job-b-0": "Succeeded"}
    for host, pod in by_host(pods).items():
        said = namespace.logs(pod["metadata"]["name"], "task")
        assert "SKYPILOT_JOBGROUP_NAME: test-job-group" in said
        assert f"Hostname: {host}" in said
    a, b = (task_started(pod) for pod in pods)
    assert abs(a - b) <= 3, "the barrier lets both go at once"
    if layout == "jobset":
        assert jobset_completed(namespace, "test-job-group")


def test_2_2_client_finds_server_by_name(namespace: Namespace) -> None:
    launch(namespace, SEEDS / "k8s_networking_test.yaml")
    pods = namespace.wait_for_end("grp", ranks=2)
    assert phases(pods) == {"server-0": "Succeeded", "client-0": "Succeeded"}
    said = namespace.logs(by_host(pods)["client-0"]["metadata"]["name"], "task")
    assert "SUCCESS: Connected to server on attempt" in said
    assert "DNS lookup failed" not in said


def test_2_3_multi_node_task_and_its_names(namespace: Namespace) -> None:
    launch(namespace, SEEDS / "k8s_multinode_test.yaml")
    pods = namespace.wait_for_end("grp", ranks=3)
    assert phases(pods) == dict.fromkeys(["workers-0", "workers-1", "coordinator-0"], "Succeeded")
    said = {host: namespace.logs(pod["metadata"]["name"], "task") for host, pod in by_host(pods).items()}
    for rank in (0, 1):
        assert "SKYPILOT_NUM_NODES: 2" in said[f"workers-{rank}"]
        assert f"SKYPILOT_NODE_RANK: {rank}" in said[f"workers-{rank}"]
    assert said["coordinator-0"].count("  Reachable") == 2


def test_8_2_two_groups_at_once_in_one_namespace(namespace: Namespace) -> None:
    groups = [launch(namespace, SEEDS / "test_job_group.yaml", name=f"group-{i}", release=f"group-{i}") for i in (1, 2)]
    for group in groups:
        pods = namespace.wait_for_end(group, ranks=2)
        assert phases(pods) == {"job-a-0": "Succeeded", "job-b-0": "Succeeded"}
        for pod in pods:
            assert f"SKYPILOT_JOBGROUP_NAME: {group}" in namespace.logs(pod["metadata"]["name"], "task")
        assert jobset_completed(namespace, group)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_example_tasks_find_each_other(namespace: Namespace, layout: str) -> None:
    launch(namespace, REPO / "values-examples" / "find-each-other" / "group.yaml", "--set", f"layout={layout}")
    pods = by_host(namespace.wait_for_end("grp", ranks=3))
    assert set(phases(list(pods.values())).values()) == {"Succeeded"}
    for rank in (0, 1):
        said = namespace.logs(pods[f"trainer-{rank}"]["metadata"]["name"], "task")
        for host, pod in pods.items():
            assert f"FOUND {host}.find-each-other at {pod['status']['podIP']}\n" in said
        assert "FOUND batch of transitions on replay-buffer-0.find-each-other" in said


ENVIRONMENT = """\
---
name: env-group
execution: parallel
---
name: t
num_nodes: 2
envs: {PRICE: "$5 $(HOME) $$", EMPTY: ""}
setup: echo "SETUP ran as $(id -u)"
run: |
  env | sort
  echo "IPS=$(echo "$SKYPILOT_NODE_IPS" | tr '\\n' ' ')"
  test -w /dev/shm
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_environment_contract(namespace: Namespace, tmp_path, layout: str) -> None:
    (tmp_path / "group.yaml").write_text(ENVIRONMENT)
    launch(namespace, tmp_path / "group.yaml", "--set", f"layout={layout}")
    pods = by_host(namespace.wait_for_end("grp", ranks=2))
    assert phases(list(pods.values())) == {"t-0": "Succeeded", "t-1": "Succeeded"}
    addresses = [pods[f"t-{rank}"]["status"]["podIP"] for rank in (0, 1)]
    run_ids = set()
    for rank in (0, 1):
        pod = pods[f"t-{rank}"]
        lines = namespace.logs(pod["metadata"]["name"], "task").splitlines()
        env = dict(line.split("=", 1) for line in lines if "=" in line)
        master = f"t-0.env-group.{namespace.name}.svc.cluster.local"
        expected = {
            "NNODES": "2", "NODE_RANK": str(rank), "NPROC_PER_NODE": "1", "MASTER_ADDR": master, "MASTER_PORT": "29500",
            "PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": master,
            "PET_MASTER_PORT": "29500", "NUM_NODES": "2", "NUM_GPUS_PER_NODE": "0", "RANK": str(rank), "ATTEMPT": "0",
            "POD_NAME": pod["metadata"]["name"], "POD_IP": pod["status"]["podIP"], "NODE_NAME": pod["spec"]["nodeName"],
            "SKYPILOT_JOBGROUP_NAME": "env-group", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0", "PRICE": "$5 $(HOME) $$", "EMPTY": "",
        }  # fmt: skip
        assert {name: env.get(name) for name in expected} == expected
        assert env["IPS"].split() == addresses
        assert lines[0] == "SETUP ran as 65532"
        run_ids.add((env["RUN_ID"], env["SKYPILOT_TASK_ID"]))
    assert len(run_ids) == 1, "one id per run, the same on every rank"


BROKEN = """\
schemaVersion: 1
name: broken
tasks:
  good: {run: "echo USER CODE RAN"}
  bad: {run: "echo USER CODE RAN", %s}
"""


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param('resources: {requests: {cpu: "10000"}}', id="not scheduled"),
        # Its pod has an address and a DNS name all the same; that must not count as present.
        pytest.param('image: "localhost/not-there:1"', id="no image"),
    ],
)
def test_barrier_holds_user_code_and_names_the_missing_rank(namespace: Namespace, cause: str) -> None:
    settings = ("--set", "barrier.timeoutSeconds=8", "--set", "layout=jobs")
    namespace.install("grp", "job-group", *settings, values=BROKEN % cause)

    def failed() -> dict | None:
        pod = by_host(namespace.pods("grp")).get("good-0")
        return pod if pod and pod["status"]["phase"] == "Failed" else None

    pod = wait_until(failed, "good-0 gave up at the barrier", 90)
    barrier = next(s for s in pod["status"]["initContainerStatuses"] if s["name"] == "barrier")["state"]["terminated"]
    assert barrier["exitCode"] == 66
    assert "bad-0" in barrier["message"] and "missing" in barrier["message"]
    task = next(s for s in pod["status"]["containerStatuses"] if s["name"] == "task")
    assert "waiting" in task["state"], "the task's container never started"


def test_a_failing_task_ends_the_group_and_keeps_its_exit_code(namespace: Namespace, tmp_path) -> None:
    text = "---\nname: f\nexecution: parallel\n---\nname: ok\nrun: sleep 300\n---\nname: bad\nrun: exit 7\n"
    (tmp_path / "group.yaml").write_text(text)
    launch(namespace, tmp_path / "group.yaml")
    assert not jobset_completed(namespace, "f")
    pod = by_host(namespace.pods("grp"))["bad-0"]
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_uninstall_leaves_nothing(namespace: Namespace, tmp_path) -> None:
    text = "---\nname: c\nexecution: parallel\n---\nname: a\nrun: sleep 300\n---\nname: b\nrun: sleep 300\n"
    (tmp_path / "group.yaml").write_text(text)
    launch(namespace, tmp_path / "group.yaml")
    wait_until(lambda: list(phases(namespace.pods("grp")).values()) == ["Running"] * 2, "both ranks run")
    run("helm", "uninstall", "grp", "--namespace", namespace.name)
    kinds = ("pods", "jobs", "jobset", "services", "configmaps")
    left = "app.kubernetes.io/instance=grp"
    wait_until(
        lambda: not any(namespace.objects(kind, left) for kind in kinds), "all objects of the group are gone", 60
    )
