"""What the problems of an evidence or of a check say, by verdict."""

from collections.abc import Callable

from gpuworker.judgement.kinds import act_of
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN


def _reasons(verdict: str) -> Callable[[object], list[str]]:
    return lambda found: [each.reason for each in found.problems if each.verdict == verdict]


failures, warnings, not_measured = map(_reasons, (FAIL, WARN, INCOMPLETE))


def kinds(found) -> set[str]:
    return {problem.kind for problem in found.problems}


def verbs(check) -> set[str]:
    """Of the acts of a check's problems."""
    acts = (
        act_of(p.kind, check.name, str(p.numbers.get("measure", "")), p.verdict)
        for p in check.problems
    )
    return {act.verb for act in acts}
