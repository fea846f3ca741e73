"""Comparison of each GPU with the other GPUs of its node.

A check measures, `problems` compares, on the node and for a reader of its report: the numbers of
GPUs, and what is in the facts because it is no number of the report: cores, the test devices of a
rehearsal, and the share of its time that a device does not lose to single calls.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.limits import models_of
from gpuworker.judgement.report import FAIL, WARN, Evidence

# Shares of the median of the others below which a device is a warning, and a failure (0: never).
# Healthy GPUs of one model differ by 5 % and more (ml-engineering); gpu-fryer's default within a
# node is 10 %.
GPUS = 0.90, 0.80
# Other pods use the memory and the cores of the host as well, so only a WARN, and for one core only
# a large difference: a busy sibling thread takes half of it, the lowest clock leaves a quarter.
HOST = {"host_memory": (0.80, 0.0), "host_compute": (0.40, 0.0)}
# The test devices of a rehearsal share cores with other processes: only large differences count.
REHEARSAL, STALLS_OF_REHEARSAL = (0.30, 0.15), (0.10, 0.0)
# paths differ: one switch, one socket, two sockets
PCIE_PEERS = 0.40, 0.0


def typical_time(device: str) -> Callable[[Sequence[float]], float]:
    """The statistic that represents the times of one device: the median for GPUs ("cuda"), the
    minimum in a rehearsal ("cpu"), because other processes on the CPU delay single calls.
    """
    return statistics.median if device == "cuda" else min


def report_name(device: str) -> str:
    """The device, or link, of measurements; "" for the other test devices of a rehearsal, which
    has one CPU.
    """
    return {"cpu:0": "cpu"}.get(
        device, "" if device.startswith("cpu:") and "→" not in device else device
    )


def record(
    evidence: Evidence,
    name: str,
    unit: str,
    amount: float,
    taken: Mapping[object, list[float]],
    kind: str,
    stalls: bool = False,
) -> None:
    """Record the seconds of each call of devices ("cuda" or "cpu", `kind`) that should be equal,
    each of which does `amount` (TFLOP, GB).

    `stalls`: also the share of its time that a device does not lose to single calls, which its
    median does not show. In a rehearsal other programs delay single calls, so a fifth of the calls
    must be slow. A rehearsal has one CPU, whose first test device stands in the measurements.
    """
    kept = {}
    for device, times in taken.items():
        usual, label = statistics.median(times), report_name(str(device))
        if label:
            evidence.add_number(name, amount / usual, unit, label)
        long = statistics.fmean(times) if kind == "cuda" else sorted(times)[4 * len(times) // 5]
        kept[str(device)] = usual / long
    if kind == "cpu":
        compare(evidence, name, {str(device): amount / min(taken[device]) for device in taken})
    if stalls:
        evidence.facts.setdefault("kept", {})[name] = kept


def compare(evidence: Evidence, what: str, rates: dict[str, float]) -> None:
    """Record the rates of devices (or links) that should be equal."""
    evidence.facts.setdefault("compared", {})[what] = rates


def problems(
    evidence: Evidence, plan: Plan, *names: str, stalls: bool = False, **own: tuple[float, float]
) -> None:
    """Add each device that is slower than others of its model, or that stalls. One device alone
    is not compared. `names`: of the numbers of GPUs, judged by GPUS or by shares of their `own`.
    `stalls`: as in `record`.
    """
    cuda = plan.device == "cuda"
    compared = dict(evidence.facts.get("compared", {}))
    for number in evidence.measurements:
        if number.name in HOST and number.name not in compared:
            evidence.incomplete("missing", f"no record of what {number.name} is the least of")
    for name in names if cuda else ():
        numbers = [number for number in evidence.measurements if number.name == name]
        compared[name] = {number.device: number.value for number in numbers if number.value > 0}
    for what, rates in compared.items():
        models = {device: models_of(device, plan.models) for device in rates}
        for device, rate in rates.items():
            peers = [
                rates[other]
                for other in rates
                if other != device and models[other] == models[device]
            ]
            if peers:
                share = rate / statistics.median(peers)
                text = f"{device} is slow: {what} is {share:.0%} of the median of its peers"
                least = (HOST | own).get(what, GPUS) if cuda else REHEARSAL
                judge_share(evidence, "slow", text, device, what, share, least)
    kept = evidence.facts.get("kept", {})
    for name in names if cuda and stalls else ():
        measured = [device for device in plan.devices if device in compared[name]]
        if absent := [device for device in measured if device not in kept.get(name, {})]:
            words = f"{', '.join(absent)}: no record of single slow calls of {name}"
            evidence.incomplete("missing", words, *absent, measure=name)
    for what, shares in kept.items():
        for device, share in shares.items():
            text = f"{device} stalls: {what} loses {1 - share:.0%} of its time in slow calls"
            least = GPUS if cuda else STALLS_OF_REHEARSAL
            judge_share(evidence, "stall", text, device, what, share, least)


def judge_share(
    evidence: Evidence, kind: str, text: str, device: str, what: str, share: float, least: tuple
) -> None:
    """Add a share below the least for a WARN and for a FAIL."""
    warn, fail = least
    if share < warn:
        verdict = FAIL if share < fail else WARN
        evidence.add(verdict, kind, text, device, measure=what, share=share)
