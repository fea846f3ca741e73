from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hack.deps import debian, go_tools, images
from hack.local_cluster import addons, controlplane, network, node, pki, processes
from hack.local_cluster.settings import (
    FEATURES,
    IP_FAMILY,
    JOBSET,
    KUBECONFIG,
    KUBERNETES,
    KUEUE,
    LOGS,
    PARTS,
    RUN,
    STATE,
    nodes,
)
from hack.paths import ToolError, main, remove, step

MODULES = (KUBERNETES, "coredns", "pause", JOBSET, "helm")
if PARTS == "all":
    MODULES += ("kube-router", KUEUE)
UP = STATE / "up.json"  # written last: a cluster without it is incomplete


def up() -> None:
    """Start the cluster, or leave it as it is if it runs as requested."""
    debian.install()
    for module in MODULES:  # those of the cluster's user, who may have another cache
        go_tools.build(module)
    if healthy():
        print(f"the local cluster is up; use it with: export KUBECONFIG={KUBECONFIG}")
        return
    controllers = ["jobset", "kueue"] if PARTS == "all" else ["jobset"]
    archives = {
        name: images.from_binary(name, addons.binary(name)) for name in ("pause", *controllers)
    }
    with step("removing an earlier cluster"):
        down()
    with step(f"starting a cluster of {len(nodes())} nodes"):
        STATE.mkdir(parents=True)
        processes.prepare_cgroups()
        network.up(nodes())
        pki.make(nodes())
        controlplane.up()
        for each in nodes():
            node.up(each, archives["pause"])
        wait_for_nodes()
    with step(f"installing {' and '.join(controllers)}"):
        everywhere(*(archives[name] for name in controllers))
        addons.install(controllers)
    UP.write_text(json.dumps(wanted()))
    print(f"the local cluster is up; use it with: export KUBECONFIG={KUBECONFIG}")


def down() -> None:
    """Remove every process, mount, namespace, route, cgroup and file of the cluster. No error if
    nothing exists.
    """
    KUBECONFIG.unlink(
        missing_ok=True
    )  # first: without our bridge its address would lead out of this machine
    containers = processes.containers()
    processes.kill_all()
    network.down()
    processes.remove_cgroups(containers)
    for folder in (RUN, STATE):
        remove(folder)
    for folder in ("/var/lib/kubelet", "/var/lib/cni"):  # mount points for the nodes
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def status() -> None:
    if not healthy():
        raise ToolError("the local cluster is not up; start it with: make cluster-up")
    print(controlplane.kubectl("get", "nodes", "--output", "wide"), end="")
    print(f"export KUBECONFIG={KUBECONFIG}")


def load(archive: str) -> None:
    """Put an image on every node."""
    everywhere(Path(archive))


def everywhere(*archives: Path) -> None:
    in_parallel(
        lambda job: node.load(*job), [(each, archive) for each in nodes() for archive in archives]
    )


def in_parallel(action, items) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(action, items))


def wanted() -> dict:
    """Versions and sizes that the cluster is started with; a change requires a new cluster."""
    found = {module: go_tools.digest(module) for module in MODULES}
    sizes = {"nodes": len(nodes()), "cpus": os.environ.get("NODE_CPUS", "")}
    return {"modules": found, **sizes, "features": FEATURES, "ip_family": IP_FAMILY}


def healthy() -> bool:
    if not UP.exists():
        return False
    started = json.loads(UP.read_text())
    if PARTS != "all":  # a cluster with more does as well
        started["modules"] = {name: started["modules"].get(name) for name in MODULES}
    if started != wanted():
        return False
    units = [*controlplane.UNITS, *(each.name for each in nodes())]
    if not all(processes.alive(unit) for unit in units):
        return False
    try:
        controlplane.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=10s")
    except ToolError:
        return False
    return True


def wait_for_nodes(deadline_s: float = 90) -> None:
    end = time.monotonic() + deadline_s
    for each in nodes():
        while True:
            try:
                controlplane.kubectl(
                    "wait", f"node/{each.name}", "--for=condition=Ready", "--timeout=5s"
                )
                break
            except ToolError:
                if time.monotonic() > end:
                    raise ToolError(
                        f"node {each.name} is not Ready; see {LOGS}/{each.name}.log"
                    ) from None
                if not processes.alive(each.name):
                    raise ToolError(f"node {each.name} ended; see {LOGS}/{each.name}.log") from None
                time.sleep(0.3)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One `up` or `down` at a time."""
    with open("/run/gpu-charts.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def entry() -> None:
    actions = {"up": up, "down": down, "status": status, "load": load}
    if (
        len(sys.argv) < 2
        or sys.argv[1] not in actions
        or len(sys.argv) != (3 if sys.argv[1] == "load" else 2)
    ):
        raise ToolError("usage: python3 -m hack.local_cluster up | down | status | load IMAGE.tar")
    if os.geteuid() != 0:
        raise ToolError(
            "the local cluster needs root (it creates network namespaces and mounts): run it with sudo"
        )
    with alone():
        actions[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main(entry)
