"""An example of the fleet page, with made-up numbers.

python -m hack.example_page FILE     write the example page

docs/fleet-page.png is a screenshot of that page, 1280 pixels wide:
chromium --headless --hide-scrollbars --no-sandbox --window-size=1280,1000 --screenshot=docs/fleet-page.png FILE
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from hack.paths import REPO

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.accept.judge import Judged
from gpuworker.accept.verdict import Check, Number
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.formats.page import page
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import Source
from gpuworker.judgement.report import (
    FAIL,
    PASS,
    SKIP,
    WARN,
    WORLD,
    Evidence,
    Problem,
    Report,
    Requested,
    World,
    WorldNode,
)

MODEL = "NVIDIA H100 80GB HBM3"
GPUS = 8
SLOW_GPUS = {(7, 3): 0.86, (11, 6): 0.93}  # (node, GPU) -> share of the speed of the others
SLOW_LINK, HOT_NODE, CORRUPT_GPU, SLOW_RANK = (5, 2, 6), 2, (9, 1), (7, 3)
NOTE = "made-up numbers"


Shown = tuple[Check, Evidence]


def shown(name: str, verdict: str = PASS, problems: list[Problem] = [], numbers: list[Number] = [], **seen) -> Shown:  # noqa: B006
    reason = "; ".join(problem.reason for problem in problems)
    return Check(name, verdict, reason, numbers, problems), Evidence(name=name, **seen)


def gpu_number(name: str, value: float, unit: str, device: str, limit: float | None = None) -> Number:
    source = f"{MODEL}: {limit:g}" if limit else "none: compared with the fleet"
    return Number(name, value, unit, device, limit, limit_source=source, better="higher", judged=True)


def compute(node: int, chance: random.Random) -> Shown:
    speeds = [SLOW_GPUS.get((node, gpu), 1.0) * chance.gauss(705, 5) for gpu in range(GPUS)]
    found = [gpu_number("gemm_bf16", speed, "TFLOP/s", f"cuda:{gpu}") for gpu, speed in enumerate(speeds)]
    if node == HOT_NODE:
        hot = "cuda:5: 84 °C is near the limit of 85"
        return shown("compute", WARN, [Problem(WARN, "slowdown", hot, ["cuda:5"])], found)
    return shown("compute", numbers=found)


def links(node: int, chance: random.Random) -> Shown:
    found, problems = [], []
    for source in range(GPUS):
        for target in range(GPUS):
            if source != target:
                slow, pair = (node, source, target) == SLOW_LINK, f"cuda:{source}→cuda:{target}"
                value = 212.0 if slow else chance.gauss(385, 4)
                found.append(gpu_number("peer_bandwidth", value, "GB/s", pair, 300))
                words, numbers = f"{pair}: peer_bandwidth {value:.3g} GB/s is below the limit of 300", {"value": value}
                problems += [Problem(FAIL, "nvlink-down", words, [pair], numbers)] * slow
    return shown("links", FAIL if problems else PASS, problems, found)


def collectives(chance: random.Random) -> Shown:
    sizes = [2**power for power in range(12, 34, 2)]
    points = [[size, chance.gauss(1, 0.01) * 370 * size / (size + 2**23)] for size in sizes]
    return shown("collectives", facts={"curves": {"all_reduce": {"unit": "GB/s", "points": points}}})


def repeatability(node: int) -> Shown:
    groups = {f"cuda:{gpu}": f"{MODEL}, driver 570.86, torch 2.9" for gpu in range(GPUS)}
    hashes = {f"gemm cuda:{gpu}": "bb" if (node, gpu) == CORRUPT_GPU else "aa" for gpu in range(GPUS)}
    return shown("repeatability", facts={"hash_group": groups}, hashes=hashes)


def all_checks(node: int, chance: random.Random) -> list[Shown]:
    gpus = [
        {
            "device": f"cuda:{i}",
            "uuid": f"GPU-{node:08x}-{i}",
            "serial": f"16502{node:03}{i}",
            "bus_id": f"0000:{i + 1}b:00.0",
        }
        for i in range(GPUS)
    ]
    checks = [
        shown("environment", facts={"gpus": gpus}),
        compute(node, chance),
        links(node, chance),
        collectives(chance),
    ]
    return [*checks, repeatability(node), shown("storage", SKIP)]


def judged(report: Report, checks: list[Shown]) -> Judged:
    report.checks = [evidence for _, evidence in checks]
    return Judged(report, [check for check, _ in checks])


def node_report(node: int, checks: list[Shown]) -> Judged:
    facts = {"gpu_models": [MODEL] * GPUS, "driver": "570.86", "cuda": "12.8", "torch": "2.9"}
    asked, start = Requested("cuda", GPUS, "quick"), f"2026-01-05T10:00:{node:02}+00:00"
    return judged(Report(f"node-{node:02}", f"accept-{node}", "1", asked, start, facts=facts), checks)


def world_report(nodes: int) -> Judged:
    node, gpu = SLOW_RANK
    reason = f"rank {node * GPUS + gpu} (node node-{node:02}, cuda:{gpu}) is slow: 16.3 ms, the others 14 ms (1.16 x)"
    slow = Problem(FAIL, "slow-rank", reason, [f"rank {node * GPUS + gpu}"])
    world = World(nodes * GPUS, [WorldNode(f"node-{i:02}", [*range(i * GPUS, (i + 1) * GPUS)]) for i in range(nodes)])
    checks = [
        shown("bad_nodes", numbers=[Number("pair_bandwidth", 361.0, "GB/s")]),
        shown("stragglers", FAIL, [slow]),
        shown("correctness", numbers=[Number("gradient_error", 2.5e-16, "x")]),
    ]
    gpus = nodes * GPUS
    asked, facts = Requested("cuda", gpus, "full"), {"gpu_models": [MODEL] * gpus}
    started = "2026-01-05T10:05:00+00:00"
    return judged(Report("node-00", "ddp-0", "ddp-1", asked, started, facts=facts, scope=WORLD, world=world), checks)


def example(nodes: int = 16) -> Fleet:
    """A fleet with every kind of finding; one expected node has no report, and Kubernetes has the reason."""
    chance = random.Random(1)
    reports = [*(node_report(node, all_checks(node, chance)) for node in range(nodes)), world_report(nodes)]
    sources = [Source(each.report.node, each.report, judged=each) for each in reports]
    names = [f"node-{node:02}" for node in range(nodes + 1)]
    pending = (
        "is Pending: Unschedulable: 0/20 nodes are available: 1 Insufficient nvidia.com/gpu, 19 node(s) didn't match"
    )
    unreported = {"accept-gpu-accept-x7k2p": (names[-1], "no-report", pending)}
    fleet = merge(sources, Expected(names=names, unreported=unreported))
    fleet.notes.insert(0, NOTE)
    return fleet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.parse_args().file.write_text(page(example()))
