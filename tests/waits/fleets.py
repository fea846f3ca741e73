"""What `helm install --wait`, `kubectl rollout status`, `kubectl wait` and `helm test` make of a fleet."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hack.paths import REPO
from tests.helpers.kube import Cluster, new_namespace
from tests.waits.table import code, ended, put, table

PAGE = REPO / "docs" / "operate.md"
DEADLINE_S, TIMEOUT_S = 100, 150  # of the fleet, and of each command
CHART = str(REPO / "charts" / "gpu-accept")
EVERYWHERE = {"kubernetes.io/os": "linux"}
FLEET, NODES = "deployment/accept-gpu-accept-fleet", "daemonset/accept-gpu-accept"


@dataclass(frozen=True)
class Fleet:
    """A situation: values of the chart on a cluster whose nodes have these names."""

    name: str
    passes: bool
    nodes: str  # "names", "more" than there are, or "one"
    labels: dict
    more: tuple[str, ...] = ()

    def settings(self, names: list[str], job: bool) -> list[str]:
        count = {"names": len(names), "more": len(names) + 1, "one": 1}[self.nodes]
        nodes = json.dumps(names) if self.nodes == "names" and not job else str(count)
        values = ["--set-json", f"nodes={nodes}", "--set-json", f"nodeSelector={json.dumps(self.labels)}"]
        values += ["--set-json", 'checks=["environment", "compute"]', "--set", f"fleet.deadlineSeconds={DEADLINE_S}"]
        values += ["--set", f"device=cpu,workload={'job' if job else 'daemonset'}", *self.more]
        return values


FLEETS = (
    Fleet("every node passes", True, "names", EVERYWHERE),
    Fleet("nodes fail a check", False, "names", EVERYWHERE, ("--set", "inject=nan-product")),
    Fleet("no node has the labels", False, "one", {"kubernetes.io/os": "no-such"}),
    Fleet("fewer nodes than `nodes`", False, "more", EVERYWHERE),
    Fleet("pods that never start", False, "names", EVERYWHERE, ("--set", "resources.requests.cpu=900")),
)
# Command -> its words after `helm install`, or instead of it; {} is the namespace.
INSTALLS = {"`helm install --wait`, Helm 4": "helm", "`helm install --wait`, Helm 3": "helm3"}
AFTER = {
    "`kubectl rollout status` of the page": ("kubectl", "rollout", "status", FLEET, f"--timeout={TIMEOUT_S}s"),
    "`helm test`": ("helm", "test", "accept", "--timeout", f"{TIMEOUT_S}s"),
}
OF_A_JOB = {
    "`kubectl wait` of the Job (`workload: job`)": (
        "kubectl", "wait", "job", "--selector=app.kubernetes.io/instance=accept",
        "--for=condition=Complete", f"--timeout={TIMEOUT_S}s",
    ),
}  # fmt: skip
LESS = {"`kubectl rollout status` of the DaemonSet": ("kubectl", "rollout", "status", NODES, f"--timeout={TIMEOUT_S}s")}


def installed_with_wait(cluster: Cluster, fleet: Fleet, way: str) -> dict[str, str]:
    with new_namespace(cluster) as space:
        values = [*cluster.helm_image(), *fleet.settings(cluster.schedulable_nodes(), job=False)]
        command = [INSTALLS[way], "install", "accept", CHART, "--namespace", space.name, "--wait"]
        return {way: ended([*command, "--timeout", f"{TIMEOUT_S}s", *values], TIMEOUT_S)}


def waited_for(cluster: Cluster, fleet: Fleet, ways: dict[str, tuple[str, ...]], job: bool) -> dict[str, str]:
    """Install, then run the commands at the same time."""
    with new_namespace(cluster) as space:
        space.install("accept", "gpu-accept", *fleet.settings(cluster.schedulable_nodes(), job))
        with ThreadPoolExecutor(len(ways)) as pool:
            commands = [[*words, "--namespace", space.name] for words in ways.values()]
            return dict(zip(ways, pool.map(lambda each: ended(each, TIMEOUT_S), commands), strict=True))


def write(cluster: Cluster) -> list[str]:
    """Write the table, and return what contradicts the verdict."""
    with ThreadPoolExecutor(4) as pool:
        running = []
        for fleet in FLEETS:
            parts = [pool.submit(installed_with_wait, cluster, fleet, way) for way in INSTALLS]
            parts.append(pool.submit(waited_for, cluster, fleet, {**AFTER, **LESS}, False))
            parts.append(pool.submit(waited_for, cluster, fleet, OF_A_JOB, True))
            running.append(parts)
        order = [*INSTALLS, *AFTER, *OF_A_JOB, *LESS]
        found = {}
        for fleet, parts in zip(FLEETS, running, strict=True):
            cells = {way: text for part in parts for way, text in part.result().items()}
            found[fleet.name] = {way: cells[way] for way in order}
    put(PAGE, "waits", table(found))
    return [
        f"{fleet.name}: {way}: exit code {text}"
        for fleet in FLEETS
        for way, text in found[fleet.name].items()
        if way not in LESS and (code(text) == 0) != fleet.passes
    ]
