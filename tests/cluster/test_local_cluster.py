"""The local cluster: it recovers from a kill, `down` leaves nothing behind, and no packet leaves
the machine.

These tests break the running cluster and remove it at the end, so they run last. They need root. A
start takes half a minute, so the first test removes the cluster that others have broken, and the
last one the cluster of those before.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hack.local_cluster import processes
from hack.local_cluster.settings import BRIDGE, CGROUP, ETCD, PKI, RUN, STATE, nodes
from hack.paths import REPO

PATIENCE_S = 900  # removing 8 GB of images took 13 s, and 7 min on a busy disk
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def cluster(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hack.local_cluster", *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=PATIENCE_S)


def text_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def traces() -> list[str]:
    """Everything of the cluster that exists on this machine."""
    found = [str(root / CGROUP) for root in processes.hierarchies() if (root / CGROUP).exists()]
    found += [str(path) for path in (STATE, RUN) if path.exists()]
    found += [line for line in text_of("ip", "netns").splitlines() if "gpuc-" in line]
    found += [
        link["ifname"]
        for link in json.loads(text_of("ip", "-json", "link"))
        if "gpuc" in link["ifname"]
    ]
    ours = (BRIDGE, "unreachable 10.", "unreachable fd00:10:")
    for family in ("-4", "-6"):
        found += [
            line
            for line in text_of("ip", family, "route").splitlines()
            if any(word in line for word in ours)
        ]
    found += [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if "gpu-charts" in line
    ]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            mounts = (process / "mounts").read_text()
        except OSError:  # it has ended
            continue
        if any(str(STATE) in word or str(RUN) in word for word in words) or str(STATE) in mounts:
            found.append(" ".join(words))
    return found


@pytest.fixture(scope="module", autouse=True)
def removed_afterwards():
    yield
    cluster("down")


@pytest.mark.parametrize(
    "after_s", [*(pytest.param(s, marks=pytest.mark.matrix) for s in (0.5, 3)), 9]
)
def test_up_works_after_a_killed_up(after_s: float) -> None:
    """SIGKILL during `up`, with an incomplete cluster; the next `up` cleans up and starts a
    complete one.
    """
    assert cluster("down").returncode == 0
    command = [sys.executable, "-m", "hack.local_cluster", "up"]
    killed = subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with pytest.raises(subprocess.TimeoutExpired):  # `up` still runs
        killed.wait(after_s)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    start = time.monotonic()
    done = cluster("up")
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"up after a kill at {after_s} s: {time.monotonic() - start:.0f} s")
    assert cluster("status").returncode == 0


def test_no_packet_leaves_the_machine() -> None:
    assert cluster("up").returncode == 0
    for node in nodes():
        routes = text_of("ip", "-n", node.namespace, "route")
        assert routes and "default" not in routes
        leaving = subprocess.run(
            ["ip", "-n", node.namespace, "route", "get", "192.0.2.1"],
            capture_output=True,
            text=True,
        )
        assert "unreachable" in leaving.stderr
    for address in (
        "10.244.200.1",
        "10.96.0.10",
    ):  # a pod of no node, a Service: the host does not forward these either
        lost = subprocess.run(["ip", "route", "get", address], capture_output=True, text=True)
        assert "unreachable" in (lost.stdout + lost.stderr).lower() or "No route" in lost.stderr


def test_etcd_answers_nobody_without_its_certificate() -> None:
    assert cluster("up").returncode == 0
    assert processes.alive("etcd")
    for scheme in ("http", "https"):
        anybody = ssl._create_unverified_context() if scheme == "https" else None
        with pytest.raises(OSError):
            urllib.request.urlopen(
                f"{scheme}://{ETCD.partition('//')[2]}/version", timeout=20, context=anybody
            )
    certificate = ssl._create_unverified_context()
    certificate.load_cert_chain(PKI / "etcd.crt", PKI / "etcd.key")
    with urllib.request.urlopen(f"{ETCD}/version", timeout=20, context=certificate) as answer:
        assert answer.status == 200


def test_down_leaves_nothing_behind() -> None:
    assert cluster("up").returncode == 0
    assert traces(), "the search must find a running cluster"
    cgroups = [
        root / "k8s.io" / name
        for root in processes.hierarchies()
        for name in processes.containers()
    ]
    assert any(path.exists() for path in cgroups)
    done = cluster("down")
    assert done.returncode == 0, done.stderr
    assert traces() == []
    assert not any(path.exists() for path in cgroups)
    assert cluster("down").returncode == 0, "down twice is not an error"
