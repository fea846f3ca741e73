"""Judgements of the GPU pack: what each kind of step must have left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from gpuworker.judgement.judge import Judged, judge
from gpuworker.judgement.reading import report_of
from hack.gpu.runner import last_line, log_of
from hack.gpu.step import NOT_APPLICABLE, NOT_OK, OK, Figure, Judgement


def accepted(folder: Path, code: int) -> Judgement:
    """A report of accept-node with PASS or WARN, and its numbers."""
    judged = judged_report(folder)
    figures = [
        Figure(each.name, each.value, each.unit, each.device, each.limit, each.warn_limit)
        for check in judged.checks
        for each in check.numbers
    ]
    verdict = f"{judged.verdict} (exit code {code})"
    passed = judged.verdict in ("PASS", "WARN") and code == 0
    return Judgement(
        OK if passed else NOT_OK, f"{verdict}: {judged.reason}".removesuffix(": "), figures
    )


def judged_report(folder: Path) -> Judged:
    report = report_of(json.loads((folder / "report.json").read_text()))
    return judge(report, report.requested)


def any_verdict(folder: Path, code: int) -> Judgement:
    """A report of accept-node with any verdict: what it is, is the result."""
    judged = accepted(folder, code)
    return Judgement(OK, judged.why, judged.figures)


def found(check: str, kind: str, named: bool) -> Callable[[Path, int], Judgement]:
    """A fault that accept-node found. `check`: whose fault it is, or "" for the runner. `named`: by
    its own kind.

    Without peers on the node, a slow GPU is found by a limit only. The fault full-disk leaves no
    report, only a log.
    """

    def judge(folder: Path, code: int) -> Judgement:
        ends = re.findall(
            r"^\[RESULT\] .*verdict=(\w+) .*?summary=(.*)$", log_of(folder), re.MULTILINE
        )
        if not ends:  # read from the log, because the fault full-disk leaves no report
            return Judgement(NOT_OK, f"exit code {code}, no verdict: {last_line(folder)}")
        verdict, text = ends[-1]
        text = json.loads(text) if text.startswith('"') else text
        checks = judged_report(folder).checks if (folder / "report.json").is_file() else []
        verdicts = {each.name: each.verdict for each in checks}
        kinds = {problem.kind for each in checks for problem in each.problems}
        if verdict != "PASS" and (kind in kinds or not checks):
            return Judgement(OK, f"{verdict}, named")
        if check and verdicts.get(check) == "SKIP":
            return Judgement(NOT_APPLICABLE, f"{check} does not apply to this node")
        if verdict in ("FAIL", "WARN") and not named:
            return Judgement(OK, f"{verdict}, found by another kind: {text[:200]}")
        return Judgement(NOT_OK, f"{verdict}, not named: {text[:200]}")

    return judge


def ended(code: int, cause: str) -> Callable[[Path, int], Judgement]:
    """A verdict of ddp-launch with this exit code and cause. `cause`: empty for a run that is done."""

    def judge(folder: Path, seen: int) -> Judgement:
        verdicts = re.findall(r"^\[(?:FATAL|DONE)\].*", log_of(folder), re.MULTILINE)
        named = (
            re.search(r"cause=(\S+)", verdicts[-1])[1]
            if verdicts and "cause=" in verdicts[-1]
            else ""
        )
        right = seen == code and bool(verdicts) and named == cause
        return Judgement(
            OK if right else NOT_OK,
            f"exit code {seen}, {named or 'done' if verdicts else 'no verdict'}",
        )

    return judge


def reported(folder: Path, code: int) -> Judgement:
    """A list of figures in `figures.json`, and a sentence in it."""
    if code:
        return Judgement(NOT_OK, f"exit code {code}: {last_line(folder)}")
    left = json.loads((folder / "figures.json").read_text())
    return Judgement(OK, left.get("note", ""), [Figure(**figure) for figure in left["figures"]])
