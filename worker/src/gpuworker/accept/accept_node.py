"""accept-node: run the checks of this node once and write one report with one verdict.

The report is written to REPORT_DIR/report.json, to the last lines of the log ([REPORT] …, for accept-report) and, in
short, to the termination message. Exit code 0: PASS or WARN, 1: FAIL, 2: usage, 3: INCOMPLETE. With --exit-zero the
exit code is 0 once the report is written: in an init container any other code would run the checks again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from gpuworker.accept import check_spec, fault_injection, registry
from gpuworker.accept.check_process import CheckRunner, Stuck
from gpuworker.accept.check_spec import Evidence, Plan, Registered
from gpuworker.accept.cli import parse
from gpuworker.accept.fabric_watch import watch_fabric
from gpuworker.accept.limits import Limits, problems
from gpuworker.accept.node_facts import IDENTITY
from gpuworker.accept.publish import log_check, new_report, publish
from gpuworker.accept.report import EXIT_CODES, INCOMPLETE, Check, Coverage, Report
from gpuworker.accept.verdict import judge
from gpuworker.accept.xid_watch import XidWatch
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.log import log

BURN_IN = "burn-in"


def main() -> None:
    escape_output()
    try:
        args = parse(registry.node_checks(), __doc__)
    except ValueError as error:  # a file that is not a check
        print(f"accept-node: {error}", file=sys.stderr)
        sys.exit(2)
    path = Path(args.report_dir) / "report.json"
    if earlier := report_of(path, args.run_id):
        if differences := other_request(earlier, args):
            words = f"{path} is a report of run {args.run_id} with {differences}"
            print(f"accept-node: {words}. Choose another --run-id or --report-dir.", file=sys.stderr)
            sys.exit(2)
        log("RESULT", note="this run has a report already", report=path)
        sys.exit(0 if args.exit_zero else EXIT_CODES[earlier["verdict"]])
    code = accept(args, path)
    if multiprocessing.active_children():  # one that cannot be killed: sys.exit would wait for it
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def accept(args: Namespace, path: Path) -> int:
    """Run the checks and write the report. Returns the exit code."""
    chosen, left_out = choose(args)
    coverage = Coverage(len(chosen), args.gpus, left_out=left_out)
    report = new_report(args.run_id, args.device, args.level, coverage, injected=args.inject)
    plan = Plan(
        args.device, args.gpus, args.level, inject=args.inject, processes=args.processes,
        volumes=args.volumes, expect=args.expect,
    )  # fmt: skip
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    start = time.monotonic()
    if started_before(path.with_name("started"), args.run_id):
        report.checks.append(Check("start", INCOMPLETE, "an earlier attempt of this run was killed (out of memory?)"))
    else:
        try:
            runner = CheckRunner(lambda: bool(stop_signals))
            with watch_xids(report), watch_fabric(report), contextlib.closing(runner):
                run(report, plan, chosen, args, runner)
        except Exception as error:  # neither a broken torch nor a full /tmp may end this without a report
            traceback.print_exc()
            report.checks.append(Check("runner", INCOMPLETE, f"{type(error).__name__}: {error}"))
    report.duration_s = time.monotonic() - start
    written = publish(report, path)
    return 0 if args.exit_zero and written else EXIT_CODES[report.verdict]


def choose(args: Namespace) -> tuple[list[Registered], list[str]]:
    """The requested checks of the level, and the names of its others."""
    at_level = [check for check in registry.node_checks().values() if args.level in check.spec.seconds]
    chosen = [check for check in at_level if not args.check or check.name in args.check]
    return chosen, [check.name for check in at_level if check not in chosen]


@contextlib.contextmanager
def watch_xids(report: Report) -> Iterator[None]:
    """Add what the driver reports during the checks to the report."""
    if report.device != "cuda":
        yield
        return
    watch = XidWatch()
    watch.start()
    try:
        yield
    finally:
        if found := watch.stop():
            report.checks.append(found)
            log_check(check_spec.TAGS[0], found)


def run(report: Report, plan: Plan, chosen: list[Registered], args: Namespace, runner: CheckRunner) -> None:
    """Add node facts and the checks to the report."""
    import torch  # noqa: F401  once, here: the forked checks have it

    identity, _ = runner.run(IDENTITY, dataclasses.replace(plan, inject="", seconds=60), args.check_timeout)
    report.facts = identity.facts
    models = tuple(identity.facts.get("gpu_models", ()))
    report.coverage.gpus_seen = len(models)
    user = fault_injection.limits(args.limits, plan)
    refused = problems(user, models)
    limits = Limits(models, {key: value for key, value in user.items() if key not in refused})
    if refused:
        report.checks.append(Check("limits", INCOMPLETE, "; ".join(refused.values())))
    if identity.not_measured or len(models) != plan.gpus:
        reason = (
            "; ".join(identity.not_measured) or f"{len(models)} of {plan.gpus} GPUs seen: the other checks did not run"
        )
        report.checks.append(Check("coverage", INCOMPLETE, reason))
        explains = check_spec.TAGS[:1] if not isinstance(identity, Stuck) else ()
        chosen = [check for check in chosen if check.spec.tag in explains]  # explains what is missing
    total_s = sum(check.spec.seconds[plan.level] for check in chosen)
    evidence: Evidence | None = None
    for index, registered in enumerate(chosen):
        if runner.stopped() or isinstance(evidence, Stuck):
            why = "stopped by SIGTERM" if runner.stopped() else "the driver hangs"
            report.checks.append(Check(registered.name, INCOMPLETE, f"not run: {why}"))
            continue
        seconds = registered.spec.seconds[plan.level] * (args.burn_in_seconds / total_s if plan.level == BURN_IN else 1)
        inject = "" if index and plan.inject in check_spec.RUNNER_FAULTS else plan.inject
        its_plan = dataclasses.replace(plan, seconds=seconds, inject=inject)
        following = chosen[index + 1].spec.process if index + 1 < len(chosen) else ""
        shared = bool(following) and following == registered.spec.process
        evidence, duration_s = runner.run(registered, its_plan, args.check_timeout, shared)
        check = judge(registered.name, registered.spec, evidence, limits, its_plan)
        check.duration_s = duration_s
        report.checks.append(check)
        report.coverage.checks_reported += 1
        log_check(registered.spec.tag, check)


def started_before(path: Path, run_id: str) -> bool:
    """Whether an earlier attempt of this run started and wrote no report. Marks this start."""
    try:
        if path.exists() and path.read_text(encoding="utf-8") == run_id:
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(run_id, encoding="utf-8")
    except OSError as error:
        log("RESULT", note=f"{path} cannot be written ({error}); the checks run, the report will be in the log")
    return False


def report_of(path: Path, run_id: str) -> dict | None:
    """This run's report, or None without a readable one."""
    try:
        earlier = json.loads(path.read_text())
        return earlier if earlier["run_id"] == run_id and earlier["verdict"] in EXIT_CODES else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def other_request(report: dict, args: Namespace) -> str:
    """What the report was requested to test and this start is not, as words; "" if the request is the same."""
    coverage = report.get("coverage") or {}
    pairs = {
        "device": (report.get("device"), args.device),
        "level": (report.get("level"), args.level),
        "gpus": (coverage.get("gpus_expected"), args.gpus),
        "inject": (report.get("injected"), args.inject),
        "checks left out": (coverage.get("left_out"), choose(args)[1]),
    }
    return ", ".join(
        f"{what} {found!r} (requested: {wanted!r})" for what, (found, wanted) in pairs.items() if found != wanted
    )


if __name__ == "__main__":
    main()
