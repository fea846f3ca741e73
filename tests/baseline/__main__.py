"""Comparison of ddp-run with hand-written manifests: python -m tests.baseline [starts [ROUNDS]] [restarts] [faults].

`starts`: seconds from `kubectl apply` to the end of the first all-reduce, one run after the other, alternating.
`restarts`: seconds from a rank's failure to the next first all-reduce, in the same pods and in new ones.
`faults`: the same injected faults in each, in parallel; exit codes, seconds, and which runs hang. In the manifests,
only the image, the number of GPUs, the program and the namespace are replaced. Each run has two nodes with one process
each; a run that has not ended after LIMIT_S counts as hanging. docs/ddp-run-vs-manifests.md has the results.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from hack import test_cluster
from hack.paths import ToolError, main
from tests.helpers.kube import REPO, Cluster, Namespace, new_namespace, run

LIMIT_S = 180
HERE = Path(__file__).parent
RESTARTS = {"in place": "maxRestartsInPlace=1", "by the Job": "maxRestarts=1"}
WAYS = ("ddp-run", "correct", "statefulset", "job")
PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("FIRST", total.item(), time.time(), flush=True)
for step in range(20):
    if step == 7 and dist.get_rank() == 1:
        FAULT
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)  # the work of a step
dist.destroy_process_group()
print("LAST", flush=True)
"""
SILENT = "import socket\ns = socket.create_server(('', PORT))\nkept = []\nwhile True: kept.append(s.accept()[0])"
# Fault -> shell before the launcher on node 0 or 1.
FAULTS_BEFORE_START = {
    "node 0 starts 60 s late": '[ "$INDEX" != 0 ] || sleep 60',
    "node 1 never joins": '[ "$INDEX" != 1 ] || exec sleep 3600',
    "node 0's port refuses connections": '[ "$INDEX" != 0 ] || exec sleep 3600',
    "a program on that port that sends nothing": f'[ "$INDEX" != 0 ] || exec python3 -c "{SILENT}"',
    "an HTTP server on that port": '[ "$INDEX" != 0 ] || exec python3 -m http.server PORT',
    "node 1 has a different node count": '[ "$INDEX" != 1 ] || export NNODES=3',
    "node 0's name does not resolve": "export MASTER_ADDR=nobody.invalid",
}
# Fault -> statement of rank 1 in step 7.
FAULTS_DURING_RUN = {
    "rank 1 exits with 9": "sys.exit(9)",
    "rank 1 is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "rank 1 is frozen": "os.kill(os.getpid(), signal.SIGSTOP)",
    "rank 1 exits with 0 while others work": "break",
}


def manifests(way: str, space: Namespace, before: str, fault: str, more: tuple[str, ...] = ()) -> list[dict]:
    """The objects, with the program in place and shell before the launcher. `more`: values of ddp-run."""
    if way == "ddp-run":
        settings = ["timeouts.joinSeconds=90", "timeouts.startupCollectiveSeconds=60", "timeouts.collectiveSeconds=60"]
        settings += ["program.args={/tmp/train.py}", *more]
        command = ["helm", "template", "run", str(REPO / "charts/ddp-run"), "--namespace", space.name]
        command += [*space.cluster.helm_image(), *(word for s in settings for word in ("--set", s))]
        text = run(*command)
    else:
        text = (HERE / f"{way}.yaml").read_text()
    objects = [item for item in yaml.safe_load_all(text) if item]
    pod = next(item for item in objects if "template" in item["spec"])["spec"]["template"]["spec"]
    container = pod["containers"][0]
    head = f"cat > /tmp/train.py <<'END'\n{PROGRAM.replace('FAULT', fault)}\nEND\n"
    head += "INDEX=${NODE_RANK:-${RANK:-$JOB_COMPLETION_INDEX}}\n"
    head += before.replace("PORT", "29501" if way == "ddp-run" else "29500") + "\n"
    if way == "ddp-run":
        script = f'{head}exec {" ".join(container["command"])} "$@"'
        container["command"] = ["bash", "-c", script.replace("$", "$$"), "launch"]
    else:
        container["image"] = space.cluster.image
        container["command"][2] = head.replace("$", "$$") + container["command"][2]
    return objects


def outcome(cluster: Cluster, way: str, before: str = "", fault: str = "pass") -> tuple[float | None, str]:
    """Seconds until the first all-reduce ended on both nodes, and a description of how the run ended."""
    # Hand-written manifests do not fit a stricter level.
    with new_namespace(cluster, "privileged") as space:
        objects = yaml.safe_dump_all(manifests(way, space, before, fault))
        begun, clock = time.monotonic(), time.time()
        space.kubectl("apply", "-f", "-", input=objects)
        ends: dict[str, str] = {}  # pod -> how its first container ended, and when
        for pod in space.watch("pods", LIMIT_S):
            for status in pod["status"].get("containerStatuses", []):
                over = status["state"].get("terminated") or status["lastState"].get("terminated")
                if over and (name := pod["metadata"]["name"]) not in ends:
                    verdict = f": {over['message']}" if over.get("message") else ""
                    ends[name] = f"{over['exitCode']} after {time.monotonic() - begun:.0f} s{verdict}"
            if len(ends) == 2:
                break
        first = [float(line.split()[2]) - clock for line in firsts(space, "FIRST 2.0").values()]
        words = "; ".join(sorted(ends.values()) + ["hangs"] * (2 - len(ends)))
        return (max(first) if len(first) == 2 else None), words


def firsts(space: Namespace, word: str) -> dict[str, str]:
    """Pod -> the first line of its log that begins with `word`."""
    found = {}
    for pod in space.objects("pods"):
        if not pod["status"].get("containerStatuses", [{"state": {"waiting": 1}}])[0]["state"].get("waiting"):
            name = pod["metadata"]["name"]
            lines = [line for line in space.kubectl("logs", name).splitlines() if line.startswith(word)]
            if lines:
                found[name] = lines[0]
    return found


def starts(cluster: Cluster, rounds: int) -> None:
    """Start-up of the two ways that reliably form a world. The first row of `faults` has that of the others."""
    seconds: dict[str, list[float | None]] = {way: [] for way in WAYS[:2]}
    for _ in range(rounds):
        for way in seconds:
            first, words = outcome(cluster, way)
            seconds[way].append(first)
            print(f"{way}: {f'first all-reduce after {first:.1f} s' if first else 'no world'}; {words}", flush=True)
    for way, found in seconds.items():
        good = [value for value in found if value]
        median = f"median {statistics.median(good):.1f} s, least {min(good):.1f} s" if good else "never"
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
        objects = yaml.safe_dump_all(manifests("ddp-run", space, "", FIRST_START.strip(), (value,)))
        space.kubectl("apply", "-f", "-", input=objects)
        for job in space.watch("jobs", LIMIT_S):
            if any(
                c["type"] in ("Complete", "Failed") and c["status"] == "True"
                for c in job["status"].get("conditions", [])
            ):
                break
        lines = [line.split() for pod in space.objects("pods")
                 for line in space.kubectl("logs", pod["metadata"]["name"]).splitlines()]  # fmt: skip
        (fault,) = [float(words[2]) for words in lines if words[:1] == ["FAULT"]]
        again = [float(words[2]) for words in lines if words[:1] == ["FIRST"] and float(words[2]) > fault]
        if len(again) != 2:
            raise ToolError(f"{value}: {len(again)} of 2 nodes started again")
        return max(again) - fault


def restarts(cluster: Cluster, rounds: int) -> None:
    found: dict[str, list[float]] = {way: [] for way in RESTARTS}
    for _ in range(rounds):
        for way, value in RESTARTS.items():
            found[way].append(restart_seconds(cluster, value))
            print(f"restart {way}: {found[way][-1]:.1f} s", flush=True)
    ours, job = (statistics.median(found[way]) for way in RESTARTS)
    print(f"restart in place / by the Job: {ours:.1f} s / {job:.1f} s = {ours / job:.2f}")


def faults(cluster: Cluster) -> None:
    cases = [("none", way, {}) for _ in range(3) for way in WAYS]
    cases += [(name, way, {"before": shell}) for name, shell in FAULTS_BEFORE_START.items() for way in WAYS]
    cases += [(name, way, {"fault": code}) for name, code in FAULTS_DURING_RUN.items() for way in WAYS]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda case: outcome(cluster, case[1], **case[2]), cases)
        for (name, way, _), (first, words) in zip(cases, found, strict=True):
            print(f"{name} | {way} | {f'world after {first:.0f} s; ' if first else ''}{words}", flush=True)


def entry() -> None:
    os.environ |= test_cluster.prepare()
    cluster, words = Cluster(os.environ["WORKER_IMAGE"]), sys.argv[1:] or ["starts", "restarts", "faults"]
    rounds = next((int(word) for word in words if word.isdigit()), 5)
    if "starts" in words:
        starts(cluster, rounds)
    if "restarts" in words:
        restarts(cluster, rounds)
    if "faults" in words:
        faults(cluster)


if __name__ == "__main__":
    main(entry)
