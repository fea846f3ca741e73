"""Judgements of the GPU pack: what each kind of step must have left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from hack.gpu.runner import last_line, log_of
from hack.gpu.step import NOT_APPLICABLE, NOT_OK, OK, Figure, Judgement


def accepted(folder: Path, code: int) -> Judgement:
    """A report of accept-node with PASS or WARN, and its numbers."""
    report = json.loads((folder / "report.json").read_text())
    figures = [
        Figure(each["name"], each["value"], each["unit"], each["device"], each["limit"], each["warn_limit"])
        for check in report["checks"]
        for each in check["measurements"]
    ]
    verdict = f"{report['verdict']} (exit code {code})"
    passed = report["verdict"] in ("PASS", "WARN") and code == 0
    return Judgement(OK if passed else NOT_OK, f"{verdict}: {report['reason']}".removesuffix(": "), figures)


def any_verdict(folder: Path, code: int) -> Judgement:
    """A report of accept-node with any verdict: what it is, is the result."""
    judged = accepted(folder, code)
    return Judgement(OK, judged.why, judged.figures)


def found(check: str, pattern: str, named: bool) -> Callable[[Path, int], Judgement]:
    """A fault that accept-node found. `check`: whose fault it is, or "" for the runner. `named`: by its own words.

    Without peers on the node, a slow GPU is found by a limit only, so by other words.
    """

    def judge(folder: Path, code: int) -> Judgement:
        ends = re.findall(r"^\[RESULT\] .*verdict=(\w+) .*?summary=(.*)$", log_of(folder), re.MULTILINE)
        if not ends:  # read from the log, because the fault full-disk leaves no report
            return Judgement(NOT_OK, f"exit code {code}, no verdict: {last_line(folder)}")
        verdict, text = ends[-1]
        text = json.loads(text) if text.startswith('"') else text
        report = json.loads((folder / "report.json").read_text()) if (folder / "report.json").is_file() else {}
        verdicts = {each["name"]: each["verdict"] for each in report.get("checks", ())}
        if verdict != "PASS" and re.search(pattern, text):
            return Judgement(OK, f"{verdict}, named")
        if check and verdicts.get(check) == "SKIP":
            return Judgement(NOT_APPLICABLE, f"{check} does not apply to this node")
        if verdict in ("FAIL", "WARN") and not named:
            return Judgement(OK, f"{verdict}, found by other words: {text[:200]}")
        return Judgement(NOT_OK, f"{verdict}, not named: {text[:200]}")

    return judge


def ended(code: int, cause: str) -> Callable[[Path, int], Judgement]:
    """A verdict of ddp-launch with this exit code and cause. `cause`: empty for a run that is done."""

    def judge(folder: Path, seen: int) -> Judgement:
        verdicts = re.findall(r"^\[(?:FATAL|DONE)\].*", log_of(folder), re.MULTILINE)
        named = re.search(r"cause=(\S+)", verdicts[-1])[1] if verdicts and "cause=" in verdicts[-1] else ""
        right = seen == code and bool(verdicts) and named == cause
        return Judgement(OK if right else NOT_OK, f"exit code {seen}, {named or 'done' if verdicts else 'no verdict'}")

    return judge


def reported(folder: Path, code: int) -> Judgement:
    """A list of figures in `figures.json`, and a sentence in it."""
    if code:
        return Judgement(NOT_OK, f"exit code {code}: {last_line(folder)}")
    left = json.loads((folder / "figures.json").read_text())
    return Judgement(OK, left.get("note", ""), [Figure(**figure) for figure in left["figures"]])
