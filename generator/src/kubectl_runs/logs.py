"""Logs of a run's ranks, as they are or as they appear."""

import threading
import time
from collections.abc import Callable

from kubectl_runs.judge import Status
from kubectl_runs.kubectl import Kubectl
from kubectl_runs.report import clean
from kubectl_runs.runs import Rank

WAIT_S = 2.0  # between two looks for new pods
LONGEST = 1 << 16  # bytes of a line


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
