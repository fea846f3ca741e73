"""Real processes in tests: their environment, their descendants, and waiting with a deadline."""

import contextlib
import os
import random
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "worker" / "src"
PATIENCE_S = 120  # until something that takes seconds on an idle machine counts as hanging


def environment(**changes: object) -> dict[str, str]:
    """This process's environment without variables of a world, with the package, on loopback, plus
    the changes.
    """
    world = (
        "RANK",
        "WORLD_SIZE",
        "NNODES",
        "NODE_RANK",
        "NPROC_PER_NODE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RUN_ID",
    )
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in world and not key.startswith("PET_")
    }
    fixed = {
        "PYTHONPATH": str(SOURCE),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return inherited | fixed | {key: str(value) for key, value in changes.items()}


def ran(*command: object, **options) -> subprocess.CompletedProcess[str]:
    """The end of a command, and what it wrote as text."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator:
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def until(condition: Callable[[], object], what: str, deadline_s: float = PATIENCE_S) -> object:
    """Wait for a condition and return its value."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s"
        time.sleep(0.02)  # between two checks
    return value


def alive(pid: int) -> bool:
    """True for a running process; a zombie has ended."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(_stat(int(folder.name))[1])
        except OSError:
            continue  # it has ended
    found = [pid]
    for parent in found:  # grows while it is read
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def _stat(pid: int) -> list[str]:
    """Fields from the state on; the process name before them may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def free_port(adjacent: int = 1) -> int:
    """The first of so many adjacent free ports.

    Below the range from which the kernel takes ports of connections, which parallel tests open all
    the time. Not the shared random generator: tests side by side may have given it one seed.
    """
    while True:
        port = random.SystemRandom().randrange(12000, 32000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as servers:
            for offset in range(adjacent):
                servers.enter_context(socket.create_server(("", port + offset)))
            return port
