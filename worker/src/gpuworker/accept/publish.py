"""Output of checks: one log line per check; the report as a file, as log lines and as termination message."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from gpuworker.accept import fault_injection
from gpuworker.accept.report import INCOMPLETE, Check, Coverage, Report, describe, to_log_lines, write_json
from gpuworker.runtime.log import log, write_termination_message


def new_report(run_id: str, device: str, level: str, coverage: Coverage, **fields: object) -> Report:
    """A report of this pod, without checks."""
    hostname = os.uname().nodename
    return Report(
        node=os.environ.get("NODE_NAME") or hostname,
        pod=os.environ.get("POD_NAME") or hostname,
        run_id=run_id,
        device=device,
        level=level,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        coverage=coverage,
        **fields,
    )


def log_check(tag: str, check: Check) -> None:
    shown = {"reason": check.reason} if check.reason else {}
    shown |= {"measured": ", ".join(describe(check.measurements))} if check.measurements else {}
    log(tag, check=check.name, verdict=check.verdict, **shown)


def publish(report: Report, path: Path) -> bool:
    """Write the report everywhere. False: the file cannot be written, which the report then contains as a check."""
    written = True
    try:
        fault_injection.before_writing(path, report.injected)
        write_json(path, report.to_dict())
    except OSError as error:
        report.checks.append(Check("report", INCOMPLETE, f"{path} cannot be written: {error}"))
        written = False
    log("RESULT", verdict=report.verdict, report=path, summary=report.summary)
    write_termination_message(report.termination_message)
    print("\n".join(to_log_lines(report.to_dict())), flush=True)
    return written
