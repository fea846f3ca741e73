"""What the problems of an evidence or of a check say, by verdict."""

from __future__ import annotations

from gpuworker.judgement.kinds import act_of
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN


def failures(found) -> list[str]:
    return [problem.reason for problem in found.problems if problem.verdict == FAIL]


def warnings(found) -> list[str]:
    return [problem.reason for problem in found.problems if problem.verdict == WARN]


def not_measured(found) -> list[str]:
    return [problem.reason for problem in found.problems if problem.verdict == INCOMPLETE]


def kinds(found) -> set[str]:
    return {problem.kind for problem in found.problems}


def verbs(check) -> set[str]:
    """Of the acts of a check's problems."""
    acts = (
        act_of(p.kind, check.name, str(p.numbers.get("measure", "")), p.verdict)
        for p in check.problems
    )
    return {act.verb for act in acts}
