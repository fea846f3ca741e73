"""accept-node: run every check of this node once, write one report with one verdict.

Each check runs in a process of its own with a deadline, so that a crash or a hang is a finding, not the end.
Exit code 0: PASS, 1: FAIL, 2: usage, 3: INCOMPLETE. With --exit-zero the exit code only says that there is a report:
in an init container anything else would run the checks again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from gpuworker.accept.checks import CHECKS, Plan
from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, WARN, Check, Report, write_json
from gpuworker.log import log, write_termination_message

EXIT_CODES = {PASS: 0, WARN: 0, FAIL: 1, INCOMPLETE: 3}
TAGS = {"environment": "ENV", "compute": "COMPUTE", "training": "TRAIN", "collectives": "DDP"}


def main() -> None:
    args = parse_args()
    path = Path(args.report_dir) / "report.json"
    started = path.with_name("started")
    if earlier := verdict_of(path, args.run_id):
        log("RESULT", note="this run has a report already", report=path)
        finish(earlier, args)
    report = Report(
        node=os.environ.get("NODE_NAME") or os.uname().nodename,
        pod=os.environ.get("POD_NAME") or os.uname().nodename,
        run_id=args.run_id,
        device=args.device,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    if started.exists() and started.read_text() == args.run_id:
        report.checks = [Check("start", INCOMPLETE, "an earlier attempt of this run was killed (out of memory?)")]
    else:
        started.parent.mkdir(parents=True, exist_ok=True)
        started.write_text(args.run_id)
        plan = Plan(args.device, args.gpus, args.min_compute_gflops)
        for name in CHECKS:
            report.checks.append(check := run_check(name, plan, args.check_timeout))
            numbers = {m.name: f"{m.value:.4g} {m.unit}" for m in check.measurements}
            log(TAGS[name], verdict=check.verdict, **numbers, **({"reason": check.reason} if check.reason else {}))
    write_json(path, report.to_dict())
    log("RESULT", verdict=report.verdict, report=path, summary=report.summary)
    write_termination_message(report.summary)
    finish(report.verdict, args)


def run_check(name: str, plan: Plan, timeout_s: float) -> Check:
    """Run one check in a child process; a child that dies or hangs makes the check INCOMPLETE."""
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(name, plan, sender))
    start = time.monotonic()
    child.start()
    sender.close()  # so that a dead child ends our waiting
    check = None
    if receiver.poll(timeout_s):
        with contextlib.suppress(EOFError, OSError):
            check = receiver.recv()
    else:
        child.kill()
        check = Check(name, INCOMPLETE, f"not done after {timeout_s:g} s")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # however it ended, what it started must not disturb the next check
    child.join()
    if check is None:
        how = f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit code {child.exitcode}"
        check = Check(name, INCOMPLETE, f"the check ended with {how}")
    check.duration_s = time.monotonic() - start
    return check


def _child(name: str, plan: Plan, sender) -> None:
    os.setpgid(0, 0)  # a check is ended with everything that it started
    try:
        check = CHECKS[name](plan)
    except Exception as error:  # whatever went wrong, the verdict is the same and the reason says what
        check = Check(name, INCOMPLETE, f"{type(error).__name__}: {error}")
    sender.send(check)


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
    parser.add_argument("--min-compute-gflops", type=float, help="float32 GFLOP/s that every device must reach")
    parser.add_argument("--check-timeout", type=float, default=600, help="seconds that one check may take")
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument("--run-id", default="1", help="a run with a report is not run again")
    parser.add_argument("--exit-zero", action="store_true", help="exit 0 once the report is written")
    args = parser.parse_args()
    if args.device == "cuda" and args.gpus < 1:
        parser.error("--gpus is needed with --device cuda: say how many GPUs this node must show")
    if args.device == "cpu" and args.gpus:
        parser.error("--gpus makes no sense with --device cpu")
    return args


if __name__ == "__main__":
    main()
