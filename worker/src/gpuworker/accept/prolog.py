"""A prolog: the short test of this node right before a run on it.

One child process runs the checks, so that each GPU gets one context. After DEADLINE_S it is killed,
and left if it cannot be: the node is unfit by that alone. What the same GPUs passed less than an
hour ago, since this boot and with this driver, is not tested again.
"""

from __future__ import annotations

import contextlib
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from gpuworker.accept import check_process
from gpuworker.accept.check_process import supervise
from gpuworker.accept.publish import publish, write_json
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.kinds import KINDS, act_of
from gpuworker.judgement.peer_comparison import GPUS, REHEARSAL, judge_share
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import (
    EXIT_CODES,
    PASS,
    Evidence,
    Report,
    parsed,
)
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log, pairs, write_termination_message
from gpuworker.runtime.plain_files import read_plain

DEADLINE_S = {"cuda": 14.0, "cpu": 90.0}  # of 15 s; rehearsals share cores
KILL_S = 0.5
PASSED_S = 3600
MOST_BYTES = 1 << 24
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RUNNER = "runner"
SKIPPED = "skipped"  # what the child sends in place of the check that it begins

Measured = Callable[[Spec, Plan], tuple[Evidence, float]]
Work = Callable[[Report, Measured], None]


def accept(args: Namespace, report: Report, plan: Plan, path: Path, work: Work) -> int:
    """Let a child do `work`, which adds the checks to the report. Returns the exit code."""
    begin, stopped, passed = time.monotonic(), [], path.with_name("passed.json")
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    whole = not (args.inject or args.check)
    doing, seconds = RUNNER, DEADLINE_S[plan.device]

    def told(said: object) -> None:
        nonlocal doing, report
        if not isinstance(said, Evidence):
            doing, report = said

    def test(sender: Connection) -> None:
        if whole and is_known(plan, passed):
            sender.send((SKIPPED, report))
        else:
            _test(report, work, sender)
        sender.send(Evidence())

    end = supervise(test, seconds, lambda: bool(stopped), told, patience_s=KILL_S)
    if stopped:
        return ExitCode.STOPPED
    if end.problems:
        end.name = RUNNER if doing == SKIPPED else doing
        report.checks.append(end)
    elif doing == SKIPPED:
        words = "these GPUs passed less than an hour ago"
        log(Tag.RESULT, verdict=PASS, note=words)
        write_termination_message(f"{PASS}: {words}")
        return ExitCode.DONE
    if args.accepted and (found := compared(report, args.accepted)).problems:
        report.checks.append(found)
    report.duration_s = time.monotonic() - begin
    judged, _ = publish(report, path)
    if EXIT_CODES[judged.verdict] == 0:
        if whole:
            remember(report, passed)
        return ExitCode.DONE
    with contextlib.suppress(OSError):
        passed.unlink()
    facts = unfit(judged)
    log(Tag.RESULT, **facts)
    write_termination_message(f"{pairs(facts)}\n{judged.termination_message}")
    return ExitCode.DONE if args.exit_zero else ExitCode.NODE_UNFIT


def _test(report: Report, work: Work, sender: Connection) -> None:
    """In the child: each check is announced, with the report so far."""

    def measured(check: Spec, its_plan: Plan) -> tuple[Evidence, float]:
        sender.send((check.name, report))
        begin = time.monotonic()
        evidence = check_process.measured(check, its_plan)
        evidence.name = check.name
        return evidence, time.monotonic() - begin

    work(report, measured)
    sender.send((RUNNER, report))


# -- what has passed before


def identity(gpus: list[dict]) -> dict[str, object]:
    """What a verdict is of."""
    found = sorted([gpu["uuid"], str(gpu["mig"]), gpu["driver"]] for gpu in gpus if gpu["uuid"])
    return {"boot": BOOT_ID.read_text().strip(), "gpus": found}


def remember(report: Report, passed: Path) -> None:
    """Note that these GPUs have passed. A full disk costs no more than that."""
    with contextlib.suppress(OSError):
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        write_json(passed, {"of": identity(report.listed("gpus")), "at": at})


def is_known(plan: Plan, passed: Path) -> bool:
    """Whether these GPUs have passed in the last hour."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = parsed(read_plain(passed, MOST_BYTES))
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - known["at"]
        gpus = gpu_inventory.inventory()[1] if plan.device == "cuda" else []
        now = identity([vars(gpu) for gpu in gpus if gpu_inventory.is_given(gpu.uuid)])
        same = known["of"] == now and len(now["gpus"]) == plan.gpus
        return same and 0 <= age_s < PASSED_S
    return False


# -- the node's own numbers


def compared(report: Report, file: Path) -> Evidence:
    """Numbers and bits that are worse than those with which these GPUs were accepted."""
    found, now = Evidence(name="accepted"), marks(report)
    try:
        then = marks(report_of(parsed(read_plain(file, MOST_BYTES, follow=True))))
    except (OSError, ValueError) as error:
        found.warn("unreadable", f"{file}: {error}")
        return found
    least = GPUS if report.requested.device == "cuda" else REHEARSAL
    for key in now.keys() & then.keys():
        (device, value), (_, before), what = now[key], then[key], key[1]
        if isinstance(value, str):
            if value != before:
                found.fail(
                    "wrong-bits", f"{device}: other bits of {what} than at acceptance", device
                )
        else:
            share = value / before
            words = f"{device}: {what} is {share:.0%} of that at acceptance"
            judge_share(found, "baseline", words, device, what, share, least)
    if not now.keys() & then.keys():
        found.warn("missing", f"{file} has no number of these GPUs")
    return found


def uuids_of(report: Report) -> dict[str, str]:
    """Device -> UUID, or the device itself without one."""
    found = {str(gpu.get("device")): str(gpu.get("uuid") or "") for gpu in report.listed("gpus")}
    return {device: uuid or device for device, uuid in found.items()}


def marks(report: Report) -> dict[tuple[str, str, str], tuple[str, float | str]]:
    """GPU, name, and group of hashes -> device, and the rate or the hash."""
    uuids, found = uuids_of(report), {}
    specs = registry.node_checks().values()
    rates = {name for spec in specs for name in spec.prolog if spec.measures[name].limit}
    for evidence in report.checks:
        for number in evidence.measurements:
            if number.name in rates and number.device in uuids and number.value > 0:
                found[uuids[number.device], number.name, ""] = number.device, number.value
        groups = evidence.facts.get("hash_group")
        for key, value in evidence.hashes.items() if isinstance(groups, dict) else ():
            kind, _, device = key.partition(" ")
            if device in uuids:
                found[uuids[device], kind, str(groups.get(device))] = device, value
    return found


def unfit(judged: Judged) -> dict[str, str]:
    """Where the most dangerous finding is, by UUID, and what to do about it."""
    worst = [
        (check, problem)
        for check in judged.checks
        for problem in check.problems
        if problem.verdict == judged.verdict
    ]
    check, problem = min(worst, key=lambda found: KINDS[found[1].kind].danger)
    measure = str(problem.numbers.get("measure", ""))
    uuids = uuids_of(judged.report)
    return {
        "node": judged.report.node,
        "gpu": ",".join(uuids.get(part, part) for part in problem.parts) or "-",
        "act": act_of(problem.kind, check.name, measure, problem.verdict).verb or "-",
        "kind": problem.kind,
    }
