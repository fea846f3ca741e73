"""Logs of a run's ranks: merged by time, or as they appear."""

import contextlib
import heapq
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from kubectl_runs.judge import Status
from kubectl_runs.kubectl import THREADS, Kubectl
from kubectl_runs.report import clean
from kubectl_runs.runs import Rank

WAIT_S = 2.0  # between two looks for new pods
LONGEST = 1 << 16  # bytes of a line


def merged(kubectl: Kubectl, ranks: list[Rank], container: str, more: list[str]) -> Iterator[tuple[str, str]]:
    """Rank and line of all ranks in the order of their times. The logs lie in files, so that memory is bounded."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flags = (container, "--timestamps", *more)
    with contextlib.ExitStack() as stack:
        files = {rank.name: stack.enter_context(tempfile.TemporaryFile()) for rank in ranks}
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda each: kubectl.logs(each.pod, *flags, stdout=files[each.name]).wait(), ranks))
        lines = (timed(name, file) for name, file in files.items())
        yield from ((name, clean(line)) for _, name, line in heapq.merge(*lines, key=lambda each: each[0]))


def timed(name: str, file: IO[bytes]) -> Iterator[tuple[tuple[str, str], str, str]]:
    file.seek(0)
    while line := file.readline(LONGEST):
        stamp, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        seconds, _, fraction = stamp.rstrip("Z").partition(".")  # whose trailing zeros are left out
        yield (seconds, fraction.ljust(9, "0")), name, text


def follow(
    kubectl: Kubectl,
    look: Callable[[], Status],
    chosen: Callable[[Rank], bool],
    container: str,
    more: list[str],
    show: Callable[[str, str], None],
) -> Status:
    """Show lines as they appear, of pods that start later, too, until the run has ended."""
    lock, threads = threading.Lock(), {}

    def copy(rank: Rank) -> None:
        with kubectl.logs(rank.pod, container, "--follow", *more) as process:
            for line in process.stdout:
                with lock:
                    show(rank.name, clean(line.decode(errors="replace")))

    while True:
        status = look()
        for rank in filter(chosen, status.ranks):
            if rank.begun and rank.pod and rank.pod not in threads:
                threads[rank.pod] = threading.Thread(target=copy, args=[rank], daemon=True)
                threads[rank.pod].start()
        if status.state in ("done", "failed", "stopped"):
            for each in threads.values():
                each.join()
            return status
        time.sleep(WAIT_S)
