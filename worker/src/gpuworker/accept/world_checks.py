"""Checks across nodes: run each on every rank, judge it on rank 0, and write one report of scope
"world".
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import torch

from gpuworker.accept import errors
from gpuworker.accept.check_spec import Plan, Registered
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.accept.judge import judge
from gpuworker.accept.publish import log_check, new_report, publish
from gpuworker.judgement.report import (
    PASS,
    WARN,
    WORLD,
    WORLD_REPORT,
    Evidence,
    Report,
    Requested,
    World,
    WorldNode,
    not_done,
    report_dict,
    write_json,
)


def run(context: RankContext, checks: list[Registered], plan: Plan, folder: Path) -> bool:
    """Run the checks in their order. True on all ranks: each of them passed, maybe with a warning.

    Rank 0 writes the report into `folder`, first with every check INCOMPLETE: a rank that dies ends
    the whole world.
    """
    start, path = time.monotonic(), folder / WORLD_REPORT
    report = _unfinished_report(context, checks, plan)
    verdicts = set()
    try:
        for index, registered in enumerate(checks):
            began = time.monotonic()
            evidence = registered.measure_world(context, plan)
            if report:
                evidence.name, evidence.duration_s = registered.name, time.monotonic() - began
                report.checks[index] = evidence
                verdict = _judged(registered, report, path)
                context.store.set(f"verdict/{registered.name}", verdict)
            context.store.wait([f"verdict/{registered.name}"])
            verdicts.add(context.store.get(f"verdict/{registered.name}").decode())
    except Exception as error:
        if report:
            report.checks[index] = Evidence(
                problems=[errors.problem_of(error)], name=registered.name
            )
        raise
    finally:
        if report:
            report.duration_s = time.monotonic() - start
            publish(report, path)
    return verdicts <= {PASS, WARN}


def _judged(registered: Registered, report: Report, path: Path) -> str:
    """Verdict of a check that has ended; the report is written with it."""
    judged = judge(report)
    (check,) = [each for each in judged.checks if each.name == registered.name]
    log_check(registered.spec.tag, check)
    with contextlib.suppress(OSError):  # `publish` reports it
        write_json(path, report_dict(report) | judged.to_dict())
    return check.verdict


def _unfinished_report(context: RankContext, checks: list[Registered], plan: Plan) -> Report | None:
    """On rank 0 a report with the ranks of each node; None on the other ranks."""
    ranks = context.gather("rank", {"node": context.node, "gpu": context.gpu_model})
    if not ranks:
        return None
    nodes: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        nodes.setdefault(facts["node"], []).append(rank)
    gpus = [facts["gpu"] for facts in ranks if facts["gpu"]]
    words = "a rank ended before this check was done"
    names = tuple(check.name for check in checks)
    return new_report(
        os.environ.get("RUN_ID", ""),
        Requested(
            plan.device,
            len(ranks) if plan.device == "cuda" else 0,
            plan.level,
            names,
            inject=plan.inject,
        ),
        checks=[not_done(name, "not-run", words) for name in names],
        facts={"torch": torch.__version__, "cuda": torch.version.cuda, "gpu_models": gpus},
        scope=WORLD,
        world=World(len(ranks), [WorldNode(*node) for node in nodes.items()]),
    )
