"""Output of checks: one log line per check; the report as a file and, in short, as termination
message.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import os
from pathlib import Path

from gpuworker.judgement.judge import Judged, judge
from gpuworker.judgement.report import (
    Report,
    Requested,
    describe,
    not_done,
    to_json,
)
from gpuworker.judgement.verdict import Check
from gpuworker.runtime.log import log, write_termination_message
from gpuworker.runtime.plain_files import replace_plain


def new_report(run_id: str, requested: Requested, **fields: object) -> Report:
    """A report of this pod, without checks."""
    hostname = os.uname().nodename
    return Report(
        node=os.environ.get("NODE_NAME") or hostname,
        pod=os.environ.get("POD_NAME") or hostname,
        run_id=run_id,
        requested=requested,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **fields,
    )


def write_json(path: Path, data: dict) -> None:
    """Write the whole file to the disk or nothing: readers poll for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_plain(path, (to_json(data, 1) + "\n").encode(), sync=True)


def log_check(tag: str, check: Check) -> None:
    shown = {"reason": check.reason} if check.reason else {}
    shown |= {"measured": ", ".join(describe(check.numbers))} if check.numbers else {}
    log(tag, check=check.name, verdict=check.verdict, **shown)


def publish(report: Report, path: Path) -> tuple[Judged, bool]:
    """Judge the report and write it. Returns the judgement, and whether the file could be written.

    If not, the report says so as a check.
    """
    judged, written = judge(report, report.requested), True
    try:
        if report.requested.inject == "full-disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_json(path, dataclasses.asdict(report) | judged.to_dict())
    except OSError as error:
        kind = "volume-full" if error.errno == errno.ENOSPC else "volume"
        report.checks.append(not_done("report", kind, f"{path} cannot be written: {error}"))
        judged, written = judge(report, report.requested), False
    log("RESULT", verdict=judged.verdict, report=path, summary=judged.summary)
    write_termination_message(judged.termination_message)
    return judged, written
