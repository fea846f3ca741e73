"""Names that users choose change no finding: nodes, pods, volumes, folders and ports named by every
word of an act.
"""

from __future__ import annotations

import re

import pytest

from gpuworker.accept import fabric
from gpuworker.judgement.kinds import KINDS
from gpuworker.judgement.merge import merge
from gpuworker.judgement.registry import node_checks
from gpuworker.judgement.report import FAIL
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import REQUESTED, complete_report, problem, source, with_problems


def words() -> list[str]:
    """Of every kind, act, check, fault and number, and of the names of parts."""
    acts = [kind.act for kind in KINDS.values() if kind.act]
    texts = [
        *KINDS,
        *(f"{act.verb} {act.advice}" for act in acts),
        "cuda:1",
        "rank 1",
        "node n2",
        "GPU 1",
        "mlx5_0",
    ]
    for name, check in node_checks().items():
        texts += [name, check.proves, *check.measures, *check.faults]
    short = {text for text in texts if len(text) < 20}
    return sorted(
        short | {word for text in texts for word in re.findall(r"[A-Za-z0-9_:]{3,}", text)}
    )


def found(name: str) -> list[tuple]:
    """Findings and suspects of two nodes with three faults on things of this name, without the
    name.
    """
    reports = [complete_report(f"{name}-{number}", pod=f"pod-{name}-{number}") for number in (1, 2)]
    ports = [
        fabric.Port(f"{name}_{index}/1", index > 0, rate_gbps=400.0, kind="MT4129")
        for index in range(4)
    ]
    reports[0]["checks"][0]["facts"] |= fabric.facts(ports)
    wrong = problem(
        FAIL, "volume-bytes", f"rank 0: {name} (/{name}): other bytes", "rank 0", volume=f"{name}_v"
    )
    slow = problem(FAIL, "slow", f"cuda:1 is slow: {name}", "cuda:1")
    with_problems(with_problems(reports[0], "storage", wrong), "compute", slow)
    fleet = merge([source(report) for report in reports], Expected(2, requested=REQUESTED))

    def place(text: str) -> str:
        return (
            f"NAME{text.removeprefix(name)}" if text.startswith((f"{name}-", f"{name}_")) else text
        )

    findings = [
        (
            each.verdict,
            each.kind,
            each.act,
            each.check,
            each.found_by,
            place(each.node),
            place(each.device),
        )
        for each in fleet.findings
    ]
    suspects = [
        (each.verdict, each.act, each.advice, place(each.node), place(each.device))
        for each in fleet.suspects
    ]
    return sorted(findings) + suspects


@pytest.mark.slow
def test_no_word_in_a_name_changes_a_finding() -> None:
    usual = found("qqq")
    assert {"volume-bytes", "slow", "port-down"} <= {kind for _, kind, *_ in usual[:-3]}
    assert len(words()) > 300
    assert [word for word in words() if found(word) != usual] == []
