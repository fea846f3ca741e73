"""What is watched while the checks run: Xids, ports that go down, errors that links count.

Xids are the errors of NVIDIA's driver, and events of NVML, which need no privilege. A process of
its own waits for them: the runner forks the checks and must not have NVML open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path

from gpuworker.accept import fabric, host_info
from gpuworker.accept.publish import log_check
from gpuworker.judgement import check_spec, xids
from gpuworker.judgement.report import FAIL, WARN, Evidence, Report
from gpuworker.judgement.verdict import of_problems
from gpuworker.runtime import gpu_inventory

PORT_FAULT, PCIE_FAULT = "port-errors", "pcie-errors"  # injected: a bad cable, a bad riser
WAIT_MS = 500
START_S = 60  # nvmlInit takes seconds on a node without persistence mode
KILL_S = 10  # the process may hang in the driver
KERNEL_LOG = Path("/dev/kmsg")


@contextlib.contextmanager
def watch(report: Report) -> Iterator[None]:
    """Add what was seen during the checks to the report."""
    gpus = XidWatch() if report.requested.device == "cuda" else None
    before = fabric.ports(), fabric.pcie_counts()
    try:
        yield
    finally:
        seen = [gpus.stop()] if gpus else []
        seen.append(_links(report.requested.inject, *before))
        for found in seen:
            if found.problems:
                report.checks.append(found)
                log_check(check_spec.TAGS[0], of_problems(found.name, found))


def _links(inject: str, before: list[fabric.Port], pcie_before: fabric.PcieCounts) -> Evidence:
    """What the links counted since then."""
    after, pcie_after = fabric.ports(), fabric.pcie_counts()
    if inject == PORT_FAULT:
        before = [fabric.Port("mlx5_0/1", True, errors={"symbol_error": 3})]
        after = [dataclasses.replace(before[0], errors={"symbol_error": 15})]
    if inject == PCIE_FAULT:
        pcie_before, pcie_after = ({"0000:3b:00.0": {"correctable": count}} for count in (7, 5007))
    found = Evidence(name="fabric")
    fabric.new_errors(before, after, found)
    fabric.new_pcie_errors(pcie_before, pcie_after, found)
    return found


class XidWatch:
    """Xids from now until `stop`. `said`: by the process that waits for them: pairs of GPU and
    code, the text of a problem, or None when it begins.
    """

    def __init__(self) -> None:
        self.said: list[tuple[str, int] | str | None] = []
        context = multiprocessing.get_context("fork")
        self.receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_watch, args=(sender,), daemon=True)
        self._process.start()
        sender.close()  # so that the receiver notices the end of the process
        if not self.receiver.poll(START_S):
            self.said.append("NVML does not answer")

    def stop(self) -> Evidence:
        """Evidence with the Xids, or why they are unknown."""
        try:
            while self.receiver.poll():
                self.said.append(self.receiver.recv())
        except (EOFError, OSError):
            self.said.append("the process that waits for events of NVML ended")
        self._process.kill()
        self._process.join(KILL_S)
        found = Evidence(name="xids")
        for gpu, code in dict.fromkeys(each for each in self.said if isinstance(each, tuple)):
            if gpu_inventory.is_given(gpu):
                kind, hardware = xids.judged(code)
                words = f"{gpu}: Xid {code} during the checks"
                found.add(FAIL if hardware else WARN, kind, words, gpu, code=code)
        problems = [each for each in self.said if isinstance(each, str)]
        if problems and host_info.xids(KERNEL_LOG) is None:
            why = f"{problems[0]}, and {KERNEL_LOG} cannot be read here"
            found.warn("unreadable", f"the Xids of the driver are unknown: {why}")
        return found


def _watch(sender) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with gpu_inventory.nvml() as library:
            if library is None:
                sender.send("NVML cannot be opened")
                return
            _wait(library, sender)
    except Exception as error:  # of NVML, or of a version of pynvml that lacks a function
        sender.send(f"NVML has no events: {type(error).__name__}: {error}")


def _wait(library, sender) -> None:
    events = library.nvmlEventSetCreate()
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
    sender.send(None)
    while True:
        try:
            event = library.nvmlEventSetWait(events, WAIT_MS)
        except library.NVMLError as error:
            if getattr(error, "value", None) == library.NVML_ERROR_TIMEOUT:
                continue
            raise
        uuid = gpu_inventory.ask(library, "nvmlDeviceGetUUID", event.device)
        gpu = gpu_inventory.text(uuid or "a GPU that NVML cannot name")
        sender.send((gpu, int(event.eventData)))
