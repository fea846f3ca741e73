"""Faults of the local cluster: a lost node, a frozen process of the control plane, a cut network."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from hack.local_cluster import processes
from hack.local_cluster.settings import CGROUP, Node, nodes
from hack.paths import REPO, run
from tests.helpers.kube import Cluster, wait_until


def kill_node(node: Node):
    """Send SIGKILL to the node's kubelet, containerd and every container, like a power failure."""
    unit = processes.tracking() / CGROUP / "system" / node.name
    pids = {int(pid) for file in unit.rglob("cgroup.procs") for pid in file.read_text().split()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(node.folder) in (process / "mounts").read_text().partition("\n")[0]:
                pids.add(int(process.name))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lose_node(cluster: Cluster, node: Node):
    """Kill it, and delete its Node object once it is seen to be lost, which clouds do."""
    kill_node(node)
    lost = lambda: "NotReady" in cluster.kubectl("get", "node", node.name, "--no-headers")  # noqa: E731
    wait_until(lost, "the node is seen to be lost", 90)
    cluster.kubectl("delete", "node", node.name)


START_NODE = """
import sys
from hack.deps import images
from hack.local_cluster import addons, node
from hack.local_cluster.settings import nodes
node.up(nodes()[int(sys.argv[1])], images.from_binary("pause", addons.binary("pause")))
"""


def start_node(node: Node):
    """Start a node again that was killed, like a machine after a power failure: its disk has what
    it had.
    """
    run(
        sys.executable, "-c", START_NODE, str(nodes().index(node)), cwd=REPO
    )  # the node outlives this process


@contextlib.contextmanager
def frozen(unit: str) -> Iterator[None]:
    """Stop a process of the control plane, so that it does not answer, and continue it afterwards."""
    pids = [
        int(pid)
        for pid in (processes.tracking() / CGROUP / "system" / unit / "cgroup.procs")
        .read_text()
        .split()
    ]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def cut_network(addresses: dict[Node, str]) -> Iterator[None]:
    """Drop packets between these addresses on different nodes."""
    routes = [
        (node, address)
        for node in addresses
        for other, address in addresses.items()
        if other != node
    ]
    for node, address in routes:
        run("ip", "-n", node.namespace, "route", "add", "blackhole", address)
    try:
        yield
    finally:
        for node, address in routes:
            run("ip", "-n", node.namespace, "route", "delete", "blackhole", address)
