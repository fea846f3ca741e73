"""Logs of a run's ranks, as they are or as they appear."""

import re
import threading
import time
from collections.abc import Callable

from kubectl_runs.judge import Status
from kubectl_runs.kubectl import Kubectl
from kubectl_runs.pods import LINES
from kubectl_runs.report import clean
from kubectl_runs.runs import CONTAINERS, Rank

WAIT_S = 2.0  # between two looks for new pods
LONGEST = 1 << 16  # bytes of a line
NODE = re.compile(r"of node (\d+)")  # of the rank that a verdict of ddp-launch names


def show(
    kubectl: Kubectl,
    look: Callable[[], Status],
    chosen: Callable[[Rank], bool],
    flags: list[str],
    follow: bool,
    write: Callable[[str], None],
) -> Status:
    """Print the lines of every rank; with `follow` those of later pods, too, until the run has
    ended.
    """
    lock, threads = threading.Lock(), {}

    def copy(rank: Rank, width: int) -> None:
        with kubectl.logs(rank.pod, *flags) as process:
            for line in iter(lambda: process.stdout.readline(LONGEST), b""):
                with lock:
                    write(f"{rank.name:{width}} | {clean(line.decode(errors='replace'))}\n")

    while True:
        status = look()
        width = max((len(each.name) for each in status.ranks), default=0)
        for rank in filter(chosen, status.ranks):
            if rank.begun and rank.pod and rank.pod not in threads:
                threads[rank.pod] = threading.Thread(target=copy, args=[rank, width], daemon=True)
                threads[rank.pod].start()
                if not follow:  # one after the other
                    threads[rank.pod].join()
        if not follow or status.state in ("done", "failed", "stopped"):
            for each in threads.values():
                each.join()
            return status
        time.sleep(WAIT_S)


def add_last_lines(kubectl: Kubectl, status: Status) -> None:
    """Give the first failure the last lines of its rank, unless the pod's message has them."""
    first = next((each for each in status.findings if each.first), None)
    if first is None or len(first.lines) > 1:
        return
    verdict = NODE.search(first.detail)
    name = f"node-{verdict[1]}" if verdict else first.ranks[0]
    rank = next((each for each in status.ranks if each.name == name and each.pod), None)
    if rank is not None and rank.begun:
        flags = "-c", CONTAINERS[status.chart], f"--tail={LINES}"
        with kubectl.logs(rank.pod, *flags) as process:
            first.lines = tuple(process.stdout.read().decode(errors="replace").splitlines())
