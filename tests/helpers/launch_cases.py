"""A generated launch, what every program begins with, and what one rank can do wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.helpers.launchers import Run

# Lines that every rank's program begins with. `hit` is true in the rank that has the fault.
HEAD = """
import os, random, signal, sys, threading, time
RANK, FOLDER = int(os.environ["RANK"]), sys.argv[1]
hit = RANK == {culprit}
fault = os.path.join(FOLDER, "fault")
def wait_for_fault():
    while not os.path.exists(fault):
        time.sleep(0.02)
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
steps = work
def begin_fault():
    open(fault, "w").close()
# process group
"""
# The fault of one rank -> statements, cause, exit code of the run, words of the verdict.
FAULTS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "exit code": ("sys.exit(9)", "program-failed", 1, ("exit code 9",)),
    "os._exit": ("os._exit(11)", "program-failed", 1, ("exit code 11",)),
    "exit text": ("sys.exit('no data under /data')", "program-failed", 1, ("no data under /data",)),
    "exception": ("raise ValueError('loss is NaN')", "program-failed", 1, ("ValueError: loss is NaN",)),
    "refused": ("raise ConnectionRefusedError(111, 'Connection refused')", "program-failed", 1, ("Refused",)),
    "address in use": ("raise OSError(98, 'Address already in use')", "program-failed", 1, ("Errno 98",)),
    "name": ("import socket; raise socket.gaierror(-2, 'Name not known')", "program-failed", 1, ("gaierror",)),
    "database": ("raise TimeoutError('database: Timed out waiting 5000ms')", "program-failed", 1, ("database",)),
    "no route": ("raise OSError(113, 'No route to host')", "program-failed", 1, ("Errno 113",)),
    "warned": ("print('Connection refused'); print('Bus error'); sys.exit(3)", "program-failed", 1, ("code 3",)),
    "inotify": ("raise OSError(28, 'No space left on device')", "program-failed", 1, ("Errno 28",)),
    "quota": ("raise OSError(122, 'Disk quota exceeded')", "disk-full", 1, ("Errno 122",)),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "killed", 1, ("SIGKILL",)),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "killed", 1, ("SIGSEGV",)),
    "abort": ("os.abort()", "killed", 1, ("SIGABRT",)),
    "atexit": ("import atexit; atexit.register(os._exit, 5); sys.exit(0)", "program-failed", 1, ("exit code 5",)),
    "surrogate": ("raise ValueError('\\\\udcff bad')", "program-failed", 1, ("ValueError",)),
    "closed output": ("os.close(1); os.close(2); os._exit(7)", "program-failed", 1, ("exit code 7",)),
    "thread": ("threading.Thread(target=time.sleep, args=(600,), name='uploader').start(); sys.exit(0)",
               "exit-timeout", 70, ("uploader",)),
    "exec": ("os.execv('/bin/sh', ['sh', '-c', 'exit 6'])", "program-failed", 1, ("exit code 6",)),
}  # fmt: skip


@dataclass
class Case:
    """One launch and what must come of it. `codes`: of each node; `named`: words that every verdict
    has.
    """

    name: str
    nodes: int
    each: int
    program: str
    cause: str
    code: int
    named: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: dict[int, dict[str, object]] = field(default_factory=dict)
    action: Callable[[Run], None] | None = None
    checkpoints: tuple[int, ...] = ()  # ranks that must have saved
    without_node: int | None = None  # a node that has no verdict, because its launcher was killed
    limit_s: float = 40
    gloo: bool = False  # with torch, else with a stand-in for torchrun
    judge: Callable[[Run], tuple[str, int]] | None = (
        None  # cause and code, where they depend on what ranks could do
    )
