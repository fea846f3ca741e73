"""accept-node: run the checks of this node once and write one report with one verdict.

The report is written to REPORT_DIR/report.json and, in short, to the termination message. Exit code
0: PASS or WARN, 1: FAIL, 2: usage, 3: INCOMPLETE. With --exit-zero it is 0 once the report is
written: in an init container any other code would run the checks again. At the level prolog it is
72 for both FAIL and INCOMPLETE, with a line `node=… gpu=UUID act=…`.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from gpuworker.accept import check_process, errors, fault_injection, prolog
from gpuworker.accept.check_process import Stuck
from gpuworker.accept.checks import environment
from gpuworker.accept.cli import parse
from gpuworker.accept.publish import log_check, new_report, publish
from gpuworker.accept.watches import watch
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.judge import at_level, judge, limits_of
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import EXIT_CODES, Evidence, Report, Requested, not_done, parsed
from gpuworker.judgement.verdict import judge_check
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.log import log

ENVIRONMENT = "environment"


def main() -> None:
    escape_output()
    args = parse(registry.node_checks(), __doc__)
    path = Path(args.report_dir) / "report.json"
    earlier = None if args.level == "prolog" else earlier_report(path, args.run_id)
    if earlier:
        # a limit decides nothing that has been measured
        asked = dataclasses.replace(request(args), limits=earlier.requested.limits)
        if earlier.requested != asked:
            words = (
                f"{path} is a report of run {args.run_id} with {earlier.requested}, requested is"
            )
            words = f"{words} {asked}. Choose another --run-id or --report-dir."
            print(f"accept-node: {words}", file=sys.stderr)
            sys.exit(2)
        log("RESULT", note="this run has a report already", report=path)
        sys.exit(0 if args.exit_zero else EXIT_CODES[judge(earlier).verdict])
    code = accept(args, path)
    if multiprocessing.active_children():  # one that cannot be killed: sys.exit would wait for it
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def accept(args: Namespace, path: Path) -> int:
    """Run the checks and write the report. Returns the exit code."""
    requested = request(args)
    report = new_report(args.run_id, requested)
    plan = Plan(
        args.device, args.gpus, args.level, inject=args.inject, processes=args.processes,
        volumes=args.volumes, expect=args.expect,
    )  # fmt: skip
    if args.level == "prolog":
        work = functools.partial(test, plan=plan, args=args)
        return prolog.accept(args, report, plan, path, work)
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    start = time.monotonic()
    if started_before(path.with_name("started"), args.run_id):
        words = "an earlier attempt of this run was killed (out of memory?)"
        report.checks.append(not_done("start", "check-failed", words))
    else:
        patience = {"timeout_s": args.check_timeout, "stopped": lambda: bool(stop_signals)}
        measured = functools.partial(check_process.run, **patience)
        test(report, measured, patience["stopped"], plan=plan, args=args)
    report.duration_s = time.monotonic() - start
    judged, written = publish(report, path)
    return 0 if args.exit_zero and written else EXIT_CODES[judged.verdict]


def request(args: Namespace) -> Requested:
    return Requested(
        args.device, args.gpus, args.level, tuple(args.check or ()), args.limits, args.inject
    )


def test(
    report: Report,
    measured: prolog.Measured,
    stopped: Callable[[], bool] = lambda: False,
    *,
    plan: Plan,
    args: Namespace,
) -> None:
    """Add to the report all that is known of this node, with what was watched meanwhile."""
    try:
        with watch(report):
            run(report, plan, args, measured, stopped)
    except Exception as error:  # a broken torch, a full /tmp: no end without a report
        traceback.print_exc()
        report.checks.append(Evidence(problems=[errors.problem_of(error)], name="runner"))


def run(
    report: Report,
    plan: Plan,
    args: Namespace,
    measured: prolog.Measured,
    stopped: Callable[[], bool],
) -> None:
    """Add node facts and the checks to the report."""
    import torch  # noqa: F401  once, here: the forked checks have it

    if plan.level == "prolog":  # all checks in this process, of which this must be the first
        from gpuworker.accept.kernels import fingerprint

        os.environ |= fingerprint.WORKSPACE
    if refused := fault_injection.refused_limits(plan, ()):
        report.checks.append(not_done("limits", "bad-limit", *refused))
    known = {name: check.at(plan.level) for name, check in registry.node_checks().items()}
    names = at_level(plan.level, known)
    asked = args.check or names
    # what the others depend on runs in any case
    chosen = [known[name] for name in names if name in (ENVIRONMENT, *asked)]
    total_s = sum(check.seconds[plan.level] for check in chosen)
    share = args.burn_in_seconds / total_s if plan.level == "burn-in" and chosen else 1
    evidence: Evidence | None = None
    for index, registered in enumerate(chosen):
        if stopped() or isinstance(evidence, Stuck):
            why = "stopped by SIGTERM" if stopped() else "the driver hangs"
            report.checks.append(not_done(registered.name, "not-run", f"not run: {why}"))
            continue
        inject = "" if index and plan.inject in fault_injection.RUNNER_FAULTS else plan.inject
        seconds = registered.seconds[plan.level] * share
        its_plan = dataclasses.replace(plan, seconds=seconds, inject=inject)
        evidence, evidence.duration_s = measured(registered, its_plan)
        if registered.name == ENVIRONMENT:
            facts = (*environment.VERSIONS, "gpu_models")
            report.facts = {name: evidence.facts[name] for name in facts if name in evidence.facts}
            if len(report.models) != plan.gpus:
                del chosen[1:]  # they would tell nothing
            elif ENVIRONMENT not in asked and not evidence.problems:
                continue
        report.checks.append(evidence)
        limits, _ = limits_of(report.requested, tuple(report.models))
        log_check(registered.tag, judge_check(registered, evidence, limits, its_plan))


def started_before(path: Path, run_id: str) -> bool:
    """Whether an earlier attempt of this run started and wrote no report. Marks this start."""
    try:
        if path.exists() and path.read_text(encoding="utf-8") == run_id:
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(run_id, encoding="utf-8")
    except OSError as error:
        words = f"{path} cannot be written ({error}); the checks run, the report will be in the log"
        log("RESULT", note=words)
    return False


def earlier_report(path: Path, run_id: str) -> Report | None:
    """This run's report, or None without a readable one."""
    try:
        earlier = report_of(parsed(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    return earlier if earlier.run_id == run_id else None


if __name__ == "__main__":
    main()
