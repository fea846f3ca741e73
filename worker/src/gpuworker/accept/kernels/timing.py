"""Test devices and timing of work on them: stream events, cold L2 cache, all devices together or
one by one.

A rehearsal runs the same code on the test devices "cpu:0", "cpu:1", …: the CPU represents several
devices, one after the other with one thread each, so that comparisons of devices have several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from gpuworker.accept.errors import PartError
from gpuworker.judgement.check_spec import Plan

COLD_BYTES = 256 << 20  # more than any L2 holds
# enough to enqueue the first calls of a batch; the device then stays behind the host
ENQUEUE_S = 0.005
HOLD_S = 0.05  # delay per call of an injected slow device
CYCLES_PER_S = 1.5e9  # about the clock of a data centre GPU


def test_devices(plan: Plan, rehearsal: int = 2) -> list[torch.device]:
    """The GPUs of the plan that are present, or the test devices of a rehearsal.

    A missing GPU has no measurement, so its check cannot pass.
    """
    if plan.device == "cuda":
        return [torch.device(name) for name in plan.devices[: torch.cuda.device_count()]]
    torch.set_num_threads(1)
    return [torch.device("cpu", index) for index in range(rehearsal)]


def uuids(plan: Plan) -> dict[str, str]:
    """ "cuda:3" -> its UUID, "" if this torch does not report it; empty in a rehearsal, which
    does not use GPUs.
    """
    return {
        str(device): str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        for device in (test_devices(plan) if plan.device == "cuda" else ())
    }


def run_on_all(
    devices: list[torch.device], work: Callable[[torch.device], object]
) -> dict[torch.device, object]:
    """Results of work(device), on all GPUs at the same time with one thread each, on CPU test
    devices in turn.

    Raises PartError, which names the device.
    """

    def run(device: torch.device) -> object:
        try:
            if device.type == "cpu":
                return work(device)
            with torch.cuda.device(device):
                # gives this thread the context, without which cuBLAS prints a warning
                torch.cuda.synchronize(device)
                result = work(device)
                torch.cuda.synchronize(device)
                return result
        except Exception as error:
            raise PartError(str(device), error) from error

    if not devices or devices[0].type == "cpu":
        return {device: run(device) for device in devices}
    with ThreadPoolExecutor(len(devices)) as pool:
        return dict(zip(devices, pool.map(run, devices), strict=True))


def batches(
    devices: list[torch.device],
    batch: Callable[[torch.device], list[float]],
    budget_s: float,
) -> dict[torch.device, list[float]]:
    """Seconds of each call of `batch` on all devices, after a first one that warms up: until the
    time is over, and six times unless that takes three times as long.
    """
    taken: dict[torch.device, list[float]] = {device: [] for device in devices}
    run_on_all(devices, batch)
    start, rounds = time.monotonic(), 0
    while (passed := time.monotonic() - start) < budget_s or rounds < (
        6 if passed < 3 * budget_s else 1
    ):
        for device, found in run_on_all(devices, batch).items():
            taken[device] += found
        rounds += 1
    return taken


def seconds(
    action: Callable[[], object],
    device: torch.device,
    repeats: int,
    cold: torch.Tensor | None = None,
) -> list[float]:
    """Seconds of each of `repeats` calls; `cold` is overwritten before each call to clear the L2
    cache.

    On a GPU the stream is held until the first calls are enqueued, which excludes launch latency; a
    call that the GPU reached before the host had enqueued it does not count, unless all are such.
    On the CPU it is the CPU time of this thread: other programs, a CPU limit of the pod and other
    virtual machines delay a call, and are not counted.
    """
    if device.type == "cpu":
        taken = []
        for _ in range(repeats):
            start = time.thread_time()
            action()
            taken.append(time.thread_time() - start)
        return taken
    stream = torch.cuda.current_stream(device)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    hold_stream(device, ENQUEUE_S)
    in_time = []
    for begin, end in events:
        if cold is not None:
            cold.zero_()
        begin.record(stream)
        action()
        if not begin.query():
            in_time.append((begin, end))
        end.record(stream)
    torch.cuda.synchronize(device)
    # elapsed_time is in milliseconds
    return [begin.elapsed_time(end) / 1000 for begin, end in in_time or events]


def cold_buffer(device: torch.device) -> torch.Tensor | None:
    return (
        torch.empty(COLD_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    )


def hold_stream(device: torch.device, delay_s: float = HOLD_S) -> None:
    """Keep the device busy for about that long: to delay its stream, or to inject slowness."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda._sleep(int(delay_s * CYCLES_PER_S))
    else:
        end = time.thread_time() + delay_s
        while time.thread_time() < end:
            pass
