"""Start processes in the cluster's cgroup, and kill every process in it.

The cgroup is the record of started processes: children inherit it, it survives a killed parent, and
it never contains a process of others. A list of pids has none of these properties.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from pathlib import Path

from hack.local_cluster.settings import CGROUP, LOGS, RUN, STATE
from hack.paths import ToolError


def hierarchies() -> list[Path]:
    """Every mounted cgroup hierarchy: several on cgroup v1, one on v2."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in lines if fields[2] in ("cgroup", "cgroup2")]


def tracking() -> Path:
    """The hierarchy that records our processes: `pids` on cgroup v1, the only one on v2."""
    found = hierarchies()
    return next((path for path in found if path.name == "pids"), found[0])


def prepare_cgroups() -> None:
    """Create /gpu-charts/{system,pods} in every hierarchy, as the kubelet requires."""
    for root in hierarchies():
        for name in ("system", "pods"):
            (root / CGROUP / name).mkdir(parents=True, exist_ok=True)
        if (root / "cpuset.cpus").exists():  # cgroup v1: an empty cpuset accepts no process
            for folder in (root / CGROUP, root / CGROUP / "system", root / CGROUP / "pods"):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (folder / name).write_text((root / name).read_text())
        available = (
            root / CGROUP / "cgroup.controllers"
        )  # cgroup v2: pods inherit the controllers enabled here
        if available.exists():
            on = " ".join(f"+{name}" for name in available.read_text().split())
            (root / CGROUP / "cgroup.subtree_control").write_text(on)


def start(unit: str, *command: str | Path, env: dict[str, str] | None = None) -> None:
    """Start a long-running process as the only member of /gpu-charts/system/<unit>; its output goes
    to a log file.
    """
    cgroup = tracking() / CGROUP / "system" / unit
    cgroup.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    enter = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
    with open(LOGS / f"{unit}.log", "ab") as log:
        subprocess.Popen(
            ["/bin/sh", "-c", enter, "sh", str(cgroup), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )


def alive(unit: str) -> bool:
    folder = tracking() / CGROUP / "system" / unit
    return bool(folder.exists() and (folder / "cgroup.procs").read_text().split())


def members() -> set[int]:
    """Every process of ours: those in our cgroup, and those of containers, which a kubelet without
    cgroups per QoS class puts into /k8s.io/<id>. A container's mounts name its node's folder, even
    after its parent has ended.
    """
    ours = {
        int(pid)
        for root in hierarchies()
        for folder, _, _ in os.walk(root / CGROUP)
        for pid in _read(Path(folder) / "cgroup.procs").split()
        if int(pid) > 0  # 0: a process of another pid namespace
    }
    contained = {
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if str(STATE) in _read(path / "mounts")
    }
    return ours | contained


def containers() -> set[str]:
    """Ids of our containers, from the state of each node's containerd."""
    return {path.name for path in RUN.glob("*/state/io.containerd.runtime.v2.task/k8s.io/*")}


def kill_all(deadline_s: float = 30) -> None:
    """Kill every process of ours. Their data is removed afterwards, so a clean stop is not
    necessary.
    """
    end = time.monotonic() + deadline_s
    while pids := members():
        if time.monotonic() > end:
            raise ToolError(f"these processes of the cluster do not end: {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def remove_cgroups(of_containers: set[str], deadline_s: float = 30) -> None:
    """Remove ours; of /k8s.io, which another containerd may share, only what our containers had."""
    end = time.monotonic() + deadline_s
    for root in hierarchies():
        for top in (root / CGROUP, *(root / "k8s.io" / name for name in of_containers)):
            for folder, _, _ in os.walk(top, topdown=False):
                while not _removed(folder):
                    if time.monotonic() > end:
                        raise ToolError(f"processes of the cluster do not leave {folder}")
                    time.sleep(0.05)
        with contextlib.suppress(OSError):  # absent, or also used by another containerd
            (root / "k8s.io").rmdir()


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError as error:
        if (
            error.errno != errno.EBUSY
        ):  # a killed process stays in it until its last thread has ended
            raise
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the cgroup has been removed, or is threaded
        return ""
