"""Checks across nodes: run each on every rank, judge it on rank 0, and write one report of scope "world"."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import torch

from gpuworker.accept.check_spec import Plan, Registered
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.accept.limits import Limits
from gpuworker.accept.publish import log_check, new_report, publish
from gpuworker.accept.report import INCOMPLETE, PASS, WARN, WORLD, Check, Coverage, Report, World, WorldNode, write_json
from gpuworker.accept.verdict import judge

REPORT_NAME = "report-world.json"


def run(context: RankContext, checks: list[Registered], plan: Plan, folder: Path) -> bool:
    """Run the checks in their order. True on all ranks: each of them passed, maybe with a warning.

    Rank 0 writes the report into `folder`, first with every check INCOMPLETE: a rank that dies ends the whole world.
    """
    start, path = time.monotonic(), folder / REPORT_NAME
    report = _unfinished_report(context, checks, plan)
    verdicts = set()
    try:
        for index, registered in enumerate(checks):
            began = time.monotonic()
            evidence = registered.measure_world(context, plan)
            if report:
                report.checks[index] = _judged(context, registered, evidence, plan, report)
                report.checks[index].duration_s = time.monotonic() - began
                report.coverage.checks_reported += 1
                with contextlib.suppress(OSError):  # `publish` reports it
                    write_json(path, report.to_dict())
                context.store.set(f"verdict/{registered.name}", report.checks[index].verdict)
            context.store.wait([f"verdict/{registered.name}"])
            verdicts.add(context.store.get(f"verdict/{registered.name}").decode())
    except Exception as error:
        if report:
            report.checks[index].reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if report:
            report.duration_s = time.monotonic() - start
            publish(report, path)
    return verdicts <= {PASS, WARN}


def _judged(context: RankContext, registered: Registered, evidence, plan: Plan, report: Report) -> Check:
    spec = registered.spec.for_nodes(context.nodes)
    check = judge(registered.name, spec, evidence, Limits(tuple(report.facts["gpu_models"])), plan)
    log_check(spec.tag, check)
    return check


def _unfinished_report(context: RankContext, checks: list[Registered], plan: Plan) -> Report | None:
    """On rank 0 a report with the ranks of each node; None on the other ranks."""
    gpu = torch.cuda.get_device_name(context.device) if plan.device == "cuda" else ""
    ranks = context.gather("rank", {"node": context.node, "gpu": gpu})
    if not ranks:
        return None
    nodes: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        nodes.setdefault(facts["node"], []).append(rank)
    gpus = [facts["gpu"] for facts in ranks if facts["gpu"]]
    return new_report(
        os.environ.get("RUN_ID", ""),
        plan.device,
        plan.level,
        Coverage(len(checks), len(ranks) if plan.device == "cuda" else 0, len(gpus)),
        checks=[Check(check.name, INCOMPLETE, "a rank ended before this check was done") for check in checks],
        facts={"torch": torch.__version__, "cuda": torch.version.cuda, "gpu_models": gpus},
        injected=plan.inject,
        scope=WORLD,
        world=World(len(ranks), [WorldNode(*node) for node in nodes.items()]),
    )
