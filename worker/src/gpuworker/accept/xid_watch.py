"""Watch for Xids, the errors of NVIDIA's driver, while the checks run.

They are events of NVML, which need no privilege. A process of its own waits for them: the runner
forks the checks and must not have NVML open.
"""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

from gpuworker.accept import host_info
from gpuworker.judgement import xids
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import gpu_inventory

WAIT_MS = 500
START_S = 60  # nvmlInit takes seconds on a node without persistence mode
KILL_S = 10  # the process may hang in the driver
KERNEL_LOG = Path("/dev/kmsg")


class XidWatch:
    """`start` before the checks, `stop` after them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []  # GPU and code
        self.problem = ""  # why Xids may be missing
        context = multiprocessing.get_context("fork")
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_watch, args=(self._sender,), daemon=True)

    def start(self) -> None:
        self._process.start()
        self._sender.close()  # so that the receiver notices the end of the process
        if not self._receiver.poll(START_S):
            self.problem = "NVML does not answer"
        else:
            self._receive()

    def stop(self) -> Evidence | None:
        """Evidence with the Xids, or why they are unknown; None if all GPUs were watched without
        one.
        """
        while not self.problem and self._receiver.poll():
            self._receive()
        self._process.kill()
        self._process.join(KILL_S)
        found = Evidence(facts={"events": [list(event) for event in self.events]}, name="xids")
        for gpu, code in dict.fromkeys(self.events):
            kind, hardware = xids.judged(code)
            (found.fail if hardware else found.warn)(
                kind, f"{gpu}: Xid {code} during the checks", gpu, code=code
            )
        if self.problem and host_info.xids(KERNEL_LOG) is None:
            why = f"{self.problem}, and {KERNEL_LOG} cannot be read here"
            found.warn("unreadable", f"the Xids of the driver are unknown: {why}")
        return found if found.problems else None

    def _receive(self) -> None:
        try:
            kind, *event = self._receiver.recv()
        except (EOFError, OSError):
            self.problem = "the process that waits for events of NVML ended"
            return
        if kind == "problem":
            (self.problem,) = event
        elif kind == "xid":
            self.events.append(tuple(event))


def _watch(sender) -> None:
    """Send ("ready",), then ("xid", GPU, code) for each event, or ("problem", text)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with gpu_inventory.nvml() as library:
            if library is None:
                sender.send(("problem", "NVML cannot be opened"))
                return
            _wait(library, sender)
    except Exception as error:  # of NVML, or of a version of pynvml that lacks a function
        sender.send(("problem", f"NVML has no events: {type(error).__name__}: {error}"))


def _wait(library, sender) -> None:
    events = library.nvmlEventSetCreate()
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
    sender.send(("ready",))
    while True:
        try:
            event = library.nvmlEventSetWait(events, WAIT_MS)
        except library.NVMLError as error:
            if getattr(error, "value", None) == library.NVML_ERROR_TIMEOUT:
                continue
            raise
        uuid = gpu_inventory.ask(library, "nvmlDeviceGetUUID", event.device)
        sender.send(
            ("xid", gpu_inventory.text(uuid or "a GPU that NVML cannot name"), int(event.eventData))
        )
