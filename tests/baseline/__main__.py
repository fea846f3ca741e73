"""Comparison of ddp-run with others: python -m tests.baseline [starts [ROUNDS]] [restarts] [faults
[WAY…]].

`starts`: seconds from `kubectl apply` to the end of the first all-reduce, one run after the other,
alternating. `restarts`: seconds from a rank's failure to the next first all-reduce, in the same
pods and in new ones. `faults`: the same injected faults in each, in parallel; exit codes, seconds,
which runs hang, what torchrun names, and which ranks saved. In the manifests, only the image, the
number of GPUs, the program and the namespace are replaced. Each run has two nodes with one process
each; a run that has not ended after LIMIT_S counts as hanging. RESULTS.md beside it has the
results.
"""

import contextlib
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from hack import test_cluster
from hack.paths import ToolError, main
from tests.baseline import faults
from tests.helpers.ddp_pods import is_hook
from tests.helpers.kube import (
    REPO,
    Cluster,
    Namespace,
    new_namespace,
    run,
    true_conditions,
    wait_until,
)

LIMIT_S = 180
HERE = Path(__file__).parent
RESTARTS = {"in place": "maxRestartsInPlace=1", "by the Job": "maxRestarts=1"}
WAYS = ("ddp-run", "correct", "kubeflow")
STEPS, LONG_STEPS = 20, 400  # of 0.05 s; a pod is lost in the middle of the long run
BLAME = re.compile(
    r"^ +rank +: (\d+).*\n +exitcode +: (-?\d+)", re.MULTILINE
)  # in torchrun's own report


def manifests(
    way: str, space: Namespace, before: str, program: str, more: tuple[str, ...] = ()
) -> list[dict]:
    """The objects, with the program in place and shell before the launcher. `more`: values of
    ddp-run.
    """
    if way == "ddp-run":
        settings = ["timeouts.joinSeconds=90", "timeouts.collectiveSeconds=60"]
        settings += ["timeouts.exitSeconds=60", "program.args={/tmp/train.py}", *more]
        command = ["helm", "template", "run", str(REPO / "charts/ddp-run")]
        command += ["--namespace", space.name, *space.cluster.helm_image()]
        command += [word for each in settings for word in ("--set", each)]
        text = run(*command)
    else:
        text = (HERE / f"{way}.yaml").read_text()
    objects = [item for item in yaml.safe_load_all(text) if item and not is_hook(item)]
    workload = next(
        item["spec"] for item in objects if item["kind"] in ("Job", "JobSet", "StatefulSet")
    )
    workload = (
        workload["replicatedJobs"][0]["template"]["spec"]
        if "replicatedJobs" in workload
        else workload
    )
    container = workload["template"]["spec"]["containers"][0]
    head = f"cat > /tmp/train.py <<'END'\n{program}\nEND\n"
    head += "INDEX=${NODE_RANK:-${RANK:-$JOB_COMPLETION_INDEX}}\n"
    head += before.replace("PORT", "29501" if way == "ddp-run" else "29500") + "\n"
    if way == "ddp-run":
        script = f'{head}exec {" ".join(container["command"])} "$@"'
        container["command"] = ["bash", "-c", script.replace("$", "$$"), "launch"]
    else:
        container["image"] = space.cluster.image
        container["command"][2] = head.replace("$", "$$") + container["command"][2]
    return objects


def outcome(
    cluster: Cluster,
    way: str,
    before: str = "",
    fault: str = "pass",
    to_a_pod: tuple[str, ...] = (),
) -> tuple[float | None, str]:
    """Seconds until the first all-reduce ended on both nodes, and a description of how the run
    ended.
    """
    # Hand-written manifests do not fit a stricter level.
    with new_namespace(cluster, "privileged") as space:
        text = faults.program(fault, LONG_STEPS if to_a_pod else STEPS)
        objects = yaml.safe_dump_all(manifests(way, space, before, text))
        begun, clock = time.monotonic(), time.time()
        space.apply(objects)
        if to_a_pod:
            wait_until(lambda: len(firsts(space, "FIRST 2.0")) == 2, "both nodes train", LIMIT_S)
            (victim,) = [name for name, index in indexes(space).items() if index == "1"]
            first = firsts(space, "FIRST 2.0")
            space.kubectl("delete", "pod", victim, *to_a_pod)
        ends: dict[str, str] = {}  # pod -> how its first container ended, and when
        for pod in space.watch("pods", LIMIT_S):
            for status in pod["status"].get("containerStatuses", []):
                over = status["state"].get("terminated") or status["lastState"].get("terminated")
                if over and (name := pod["metadata"]["name"]) not in ends:
                    verdict = f": {over['message']}" if over.get("message") else ""
                    ends[name] = (
                        f"{over['exitCode']} after {time.monotonic() - begun:.0f} s{verdict}"
                    )
            if len(ends) == 2 or (ends and "--force" in to_a_pod):
                break
        first = first if to_a_pod else firsts(space, "FIRST 2.0")
        times = [float(line.split()[2]) - clock for line in first.values()]
        words = (
            sorted(ends.values())
            + ["hangs"] * (2 - len(ends) - ("--force" in to_a_pod))
            + blames(space)
        )
        words += [f"rank {line.split()[1]} saved" for line in firsts(space, "SAVED").values()]
        return (max(times) if len(times) == 2 else None), "; ".join(words)


def indexes(space: Namespace) -> dict[str, str]:
    """Pod -> its index in its Job."""
    key = "batch.kubernetes.io/job-completion-index"
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][key]
        for pod in space.objects("pods")
    }


def blames(space: Namespace) -> list[str]:
    """Rank and exit code that torchrun's own report names, per node."""
    found = []
    for name, log in logs(space).items():
        if blamed := BLAME.search(log):
            found.append(f"torchrun in {name} names rank {blamed[1]}, exit code {blamed[2]}")
    return found


def logs(space: Namespace) -> dict[str, str]:
    """Pod -> its log, of the pods that have started."""
    found = {}
    for pod in space.objects("pods"):
        states = [status["state"] for status in pod["status"].get("containerStatuses", [])]
        if states and "waiting" not in states[0]:
            with contextlib.suppress(AssertionError):  # the pod is gone since
                found[pod["metadata"]["name"]] = space.kubectl("logs", pod["metadata"]["name"])
    return found


def firsts(space: Namespace, word: str) -> dict[str, str]:
    """Pod -> the first line of its log that begins with `word`."""
    lines = {
        name: [line for line in log.splitlines() if line.startswith(word)]
        for name, log in logs(space).items()
    }
    return {name: found[0] for name, found in lines.items() if found}


def starts(cluster: Cluster, rounds: int):
    """Start-up of the first two ways. The first row of `faults` has that of the other one."""
    seconds: dict[str, list[float | None]] = {way: [] for way in WAYS[:2]}
    for _ in range(rounds):
        for way in seconds:
            first, words = outcome(cluster, way)
            seconds[way].append(first)
            print(
                f"{way}: {f'first all-reduce after {first:.1f} s' if first else 'no world'}; {words}",
                flush=True,
            )
    for way, found in seconds.items():
        good = [value for value in found if value]
        median = (
            f"median {statistics.median(good):.1f} s, least {min(good):.1f} s" if good else "never"
        )
        print(f"{way}: a world in {len(good)} of {len(found)} runs, {median}")
    ours, correct = (statistics.median(v for v in seconds[way] if v) for way in WAYS[:2])
    print(f"ddp-run / correct: {ours / correct:.2f}")


# Rank 1 fails in its first start: its first pod and, in that pod, its first process.
FIRST_START = """
        mark = "/tmp/started"
        if os.environ["ATTEMPT"] == "0" and not os.path.exists(mark):
            open(mark, "w").close()
            print("FAULT x", time.time(), flush=True)
            sys.exit(9)"""


def restart_seconds(cluster: Cluster, value: str) -> float:
    """Seconds from the failure of rank 1 to the end of the next first all-reduce on both nodes."""
    with new_namespace(cluster, "privileged") as space:
        objects = yaml.safe_dump_all(
            manifests("ddp-run", space, "", faults.program(FIRST_START.strip(), STEPS), (value,))
        )
        space.apply(objects)
        for job in space.watch("jobs", LIMIT_S):
            if {"Complete", "Failed"} & {*true_conditions(job)}:
                break
        lines = [line.split() for pod in space.objects("pods")
                 for line in space.kubectl("logs", pod["metadata"]["name"]).splitlines()]  # fmt: skip
        (fault,) = [float(words[2]) for words in lines if words[:1] == ["FAULT"]]
        again = [
            float(words[2]) for words in lines if words[:1] == ["FIRST"] and float(words[2]) > fault
        ]
        if len(again) != 2:
            raise ToolError(f"{value}: {len(again)} of 2 nodes started again")
        return max(again) - fault


def restarts(cluster: Cluster, rounds: int):
    found: dict[str, list[float]] = {way: [] for way in RESTARTS}
    for _ in range(rounds):
        for way, value in RESTARTS.items():
            found[way].append(restart_seconds(cluster, value))
            print(f"restart {way}: {found[way][-1]:.1f} s", flush=True)
    ours, job = (statistics.median(found[way]) for way in RESTARTS)
    goal = "met" if job / ours >= 5 else "MISSED"
    print(
        f"restart in place {ours:.1f} s, by the Job {job:.1f} s, {job / ours:.1f} times; at least 5: {goal}"
    )


def inject(cluster: Cluster, ways: Sequence[str]):
    """Every fault in each of `ways`."""
    cases = [("none", way, {}) for _ in range(3) for way in ways]
    faulty = {
        "before": faults.BEFORE_START,
        "fault": faults.DURING_RUN,
        "to_a_pod": faults.TO_A_POD,
    }
    for kind, rows in faulty.items():
        cases += [(name, way, {kind: what}) for name, what in rows.items() for way in ways]

    def tried(case):
        try:
            return outcome(cluster, case[1], **case[2])
        except (ToolError, AssertionError) as error:  # one row must not end the others
            return None, f"not measured: {error}"

    with ThreadPoolExecutor(8) as pool:
        found = pool.map(tried, cases)
        for (name, way, _), (first, words) in zip(cases, found, strict=True):
            print(
                f"{name} | {way} | {f'world after {first:.0f} s; ' if first else ''}{words}",
                flush=True,
            )


def entry():
    os.environ |= test_cluster.prepare()
    cluster = Cluster(os.environ["WORKER_IMAGE"])
    words = sys.argv[1:] or ["starts", "restarts", "faults"]
    rounds = next((int(word) for word in words if word.isdigit()), 5)
    if "starts" in words:
        starts(cluster, rounds)
    if "restarts" in words:
        restarts(cluster, rounds)
    if "faults" in words:
        inject(cluster, [way for way in WAYS if way in words] or WAYS)


if __name__ == "__main__":
    main(entry)
