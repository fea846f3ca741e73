"""accept-node: run every check of this node once, write one report with one verdict.

Each check runs in a process of its own with a deadline, so that a crash or a hang is a finding, not the end.
Exit code 0: PASS or WARN, 1: FAIL, 2: usage, 3: INCOMPLETE. With --exit-zero the exit code only says that there is a
report: in an init container anything else would run the checks again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from gpuworker.accept import registry
from gpuworker.accept.judge import judge
from gpuworker.accept.limits import Limits
from gpuworker.accept.registry import LEVELS, Evidence, Plan, Registered
from gpuworker.accept.report import (
    EXIT_CODES,
    INCOMPLETE,
    Check,
    Coverage,
    Report,
    describe,
    to_log_lines,
    write_json,
)  # fmt: skip
from gpuworker.log import log, write_termination_message


def main() -> None:
    args = parse_args()
    path = Path(args.report_dir) / "report.json"
    started = path.with_name("started")
    if earlier := verdict_of(path, args.run_id):
        log("RESULT", note="this run has a report already", report=path)
        finish(earlier, args)
    checks = [check for check in registry.load().values() if args.level in check.spec.seconds]
    report = Report(
        node=os.environ.get("NODE_NAME") or os.uname().nodename,
        pod=os.environ.get("POD_NAME") or os.uname().nodename,
        run_id=args.run_id,
        device=args.device,
        level=args.level,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        coverage=Coverage(len(checks), args.gpus),
        injected=args.inject,
    )
    start = time.monotonic()
    if started.exists() and started.read_text() == args.run_id:
        report.checks = [Check("start", INCOMPLETE, "an earlier attempt of this run was killed (out of memory?)")]
    else:
        started.parent.mkdir(parents=True, exist_ok=True)
        started.write_text(args.run_id)
        limits = Limits(user=args.limits)
        plan = Plan(args.device, args.gpus, args.level, inject=args.inject, limits_override=args.limits)
        import torch  # noqa: F401  once, here: the forked checks have it, and this process never touches a GPU

        for registered in checks:
            evidence, duration_s = run_check(registered, plan, args.check_timeout)
            check = judge(registered.name, registered.spec, evidence, limits, plan)
            if registered.name == "environment":
                limits = Limits(tuple(check.facts.get("gpu_models", ())), args.limits)
                report.coverage.gpus_seen = check.facts.get("gpus_seen", 0)
            check.duration_s = duration_s
            report.checks.append(check)
            report.coverage.checks_reported += 1
            log(registered.spec.tag, check=check.name, verdict=check.verdict, **numbers(check))
    report.duration_s = time.monotonic() - start
    data = report.to_dict()
    write_json(path, data)
    log("RESULT", verdict=report.verdict, report=path, summary=report.summary)
    write_termination_message(report.last_words)
    print("\n".join(to_log_lines(data)), flush=True)
    finish(report.verdict, args)


def numbers(check: Check) -> dict[str, str]:
    shown = {"reason": check.reason} if check.reason else {}
    if check.measurements:
        shown["measured"] = ", ".join(describe(m) for m in check.measurements)
    return shown


def run_check(registered: Registered, plan: Plan, timeout_s: float | None = None) -> tuple[Evidence, float]:
    """Run one check in a child process: its evidence and its seconds. A child that dies or hangs gives no evidence."""
    stated = registered.spec.seconds[plan.level]
    timeout_s = timeout_s or 3 * stated + 30
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix=f"accept-{registered.name}-", ignore_cleanup_errors=True) as scratch:
        plan = dataclasses.replace(plan, scratch=Path(scratch), seconds=stated)
        child = context.Process(target=_child, args=(registered, plan, sender))
        start = time.monotonic()
        child.start()
        sender.close()  # so that a dead child ends our waiting
        evidence = None
        if receiver.poll(timeout_s):
            with contextlib.suppress(EOFError, OSError):
                evidence = receiver.recv()
        else:
            child.kill()
            evidence = Evidence(missing=[f"not done after {timeout_s:g} s"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # however it ended, what it started must not disturb the next check
        child.join()
    if evidence is None:
        how = f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit code {child.exitcode}"
        evidence = Evidence(missing=[f"the check ended with {how}"])
    return evidence, time.monotonic() - start


def _child(registered: Registered, plan: Plan, sender) -> None:
    os.setpgid(0, 0)  # a check is ended with everything that it started
    try:
        evidence = registered.measure(plan)
    except Exception as error:  # whatever went wrong, the verdict is the same and the reason says what
        evidence = Evidence(missing=[f"{type(error).__name__}: {error}"])
    sender.send(evidence)


def verdict_of(path: Path, run_id: str) -> str | None:
    """The verdict of this run, if it has a report. One that cannot be read is none."""
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return earlier["verdict"] if earlier["run_id"] == run_id else None


def finish(verdict: str, args: argparse.Namespace) -> None:
    sys.exit(0 if args.exit_zero else EXIT_CODES[verdict])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="accept-node", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu is a rehearsal without GPUs")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that this node must show")
    parser.add_argument("--level", choices=LEVELS, default="quick")
    parser.add_argument(
        "--inject", default="", metavar="FAULT", help="put a fault in on purpose: its check must find it"
    )
    parser.add_argument("--limit", action="append", default=[], metavar="KEY=VALUE", help="a limit of your own")
    parser.add_argument("--min-compute-gflops", type=float, help="float32 GFLOP/s that every device must reach")
    parser.add_argument("--check-timeout", type=float, help="seconds that one check may take")
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument("--run-id", default="1", help="a run with a report is not run again")
    parser.add_argument("--exit-zero", action="store_true", help="exit 0 once the report is written")
    args = parser.parse_args()
    if args.device == "cuda" and args.gpus < 1:
        parser.error("--gpus is needed with --device cuda: say how many GPUs this node must show")
    if args.device == "cpu" and args.gpus:
        parser.error("--gpus makes no sense with --device cpu")
    args.limits = {}
    for word in args.limit:
        key, _, value = word.partition("=")
        try:
            args.limits[key] = float(value)
        except ValueError:
            parser.error(f"--limit {word}: write it as KEY=NUMBER, for example gemm_bf16=700")
    if args.min_compute_gflops is not None:
        args.limits["gemm_fp32"] = args.min_compute_gflops / 1000
    return args


if __name__ == "__main__":
    main()
