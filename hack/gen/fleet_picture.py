"""docs/fleet.svg and an example of the fleet page, both by the page's own code and with made-up numbers.

python -m hack.gen.fleet_picture --html FILE     write the example page

docs/fleet-page.png is a screenshot of that page, 1280 pixels wide:
chromium --headless --hide-scrollbars --no-sandbox --window-size=1280,1000 --screenshot=docs/fleet-page.png FILE
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from hack.paths import REPO

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.accept.report import (
    FAIL,
    PASS,
    SKIP,
    WARN,
    WORLD,
    Check,
    Coverage,
    Measurement,
    Problem,
    Report,
    World,
    WorldNode,
)
from gpuworker.fleet import outliers
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.formats import html, plots
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_form import validated
from gpuworker.fleet.report_sources import Source

MODEL = "NVIDIA H100 80GB HBM3"
GPUS = 8
SLOW_GPUS = {(7, 3): 0.86, (11, 6): 0.93}  # (node, GPU) -> share of the speed of the others
SLOW_LINK, HOT_NODE, CORRUPT_GPU, SLOW_RANK = (5, 2, 6), 2, (9, 1), (7, 3)
NOTE = "made-up numbers"


def gpu_measurement(name: str, value: float, unit: str, device: str, limit: float | None = None) -> Measurement:
    source = f"{MODEL}: {limit:g}" if limit else "none: compared with the fleet"
    return Measurement(name, value, unit, device, limit, limit_source=source, better="higher", judged=True)


def with_verdict(verdict: str, reasons: list[str]) -> list[Problem]:
    return [Problem(verdict, reason) for reason in reasons]


def compute(node: int, chance: random.Random) -> Check:
    speeds = [SLOW_GPUS.get((node, gpu), 1.0) * chance.gauss(705, 5) for gpu in range(GPUS)]
    found = [gpu_measurement("gemm_bf16", speed, "TFLOP/s", f"cuda:{gpu}") for gpu, speed in enumerate(speeds)]
    if node == HOT_NODE:
        hot = "cuda:5: 84 °C is near the limit of 85"
        return Check("compute", WARN, hot, found, problems=with_verdict(WARN, [hot]))
    return Check("compute", PASS, measurements=found)


def links(node: int, chance: random.Random) -> Check:
    found, problems = [], []
    for source in range(GPUS):
        for target in range(GPUS):
            if source != target:
                slow, pair = (node, source, target) == SLOW_LINK, f"cuda:{source}→cuda:{target}"
                value = 212.0 if slow else chance.gauss(385, 4)
                found.append(gpu_measurement("peer_bandwidth", value, "GB/s", pair, 300))
                problems += [f"{pair}: peer_bandwidth {value:.3g} GB/s is below the limit of 300"] * slow
    return Check("links", FAIL if problems else PASS, "; ".join(problems), found, problems=with_verdict(FAIL, problems))


def collectives(chance: random.Random) -> Check:
    sizes = [2**power for power in range(12, 34, 2)]
    points = [[size, chance.gauss(1, 0.01) * 370 * size / (size + 2**23)] for size in sizes]
    return Check("collectives", PASS, facts={"curves": {"all_reduce": {"unit": "GB/s", "points": points}}})


def repeatability(node: int) -> Check:
    hashes = {f"gemm cuda:{gpu}": "bb" if (node, gpu) == CORRUPT_GPU else "aa" for gpu in range(GPUS)}
    return Check("repeatability", PASS, facts={"hash_group": f"{MODEL}, driver 570.86, torch 2.9"}, hashes=hashes)


def all_checks(node: int, chance: random.Random) -> list[Check]:
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
        Check("environment", PASS, facts={"gpus": gpus}),
        compute(node, chance),
        links(node, chance),
        collectives(chance),
    ]
    return [*checks, repeatability(node), Check("storage", SKIP, "no volume")]


def node_report(node: int, checks: list[Check]) -> Report:
    facts = {"gpu_models": [MODEL] * GPUS, "driver": "570.86", "cuda": "12.8", "torch": "2.9"}
    coverage = Coverage(len(checks), GPUS, GPUS, len(checks))
    start = f"2026-01-05T10:00:{node:02}+00:00"
    return Report(f"node-{node:02}", f"accept-{node}", "1", "cuda", "quick", start, coverage, checks, facts)


def world_report(nodes: int) -> Report:
    node, gpu = SLOW_RANK
    reason = f"rank {node * GPUS + gpu} (node node-{node:02}, cuda:{gpu}) is slow: 16.3 ms, the others 14 ms (1.16 x)"
    stragglers = Check("stragglers", FAIL, reason, problems=with_verdict(FAIL, [reason]))
    world = World(nodes * GPUS, [WorldNode(f"node-{i:02}", [*range(i * GPUS, (i + 1) * GPUS)]) for i in range(nodes)])
    checks = [
        Check("bad_nodes", PASS, measurements=[Measurement("pair_bandwidth", 361.0, "GB/s")]),
        stragglers,
        Check("correctness", PASS, measurements=[Measurement("gradient_error", 2.5e-16, "x")]),
    ]
    gpus = nodes * GPUS
    return Report(
        "node-00", "ddp-0", "ddp-1", "cuda", "full", "2026-01-05T10:05:00+00:00", Coverage(3, gpus, gpus, 3), checks,
        {"gpu_models": [MODEL] * gpus}, scope=WORLD, world=world,
    )  # fmt: skip


def example(nodes: int = 16) -> Fleet:
    """A fleet with every kind of finding; one expected node has no report, and Kubernetes has the reason."""
    chance = random.Random(1)
    reports = [*(node_report(node, all_checks(node, chance)) for node in range(nodes)), world_report(nodes)]
    for report in reports:
        report.duration_s = 60.0
        for check in report.checks:
            check.duration_s = 5.0
    sources = [Source(report.node, validated(json.loads(json.dumps(report.to_dict())))) for report in reports]
    names = [f"node-{node:02}" for node in range(nodes + 1)]
    pending = (
        "is Pending: Unschedulable: 0/20 nodes are available: 1 Insufficient nvidia.com/gpu, 19 node(s) didn't match"
    )
    fleet = merge(sources, Expected(names=names, unreported={"accept-gpu-accept-x7k2p": (names[-1], pending)}))
    fleet.notes.insert(0, NOTE)
    return fleet


def picture(nodes: int = 32) -> str:
    """The plot of one measure as an SVG file."""
    chance = random.Random(1)
    reports = [node_report(node, [compute(node, chance)]).to_dict() for node in range(nodes)]
    (distribution,) = outliers.distributions(reports)
    outliers.find_outliers(distribution, outliers.DEFAULT)
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg := plots.strip_plot(distribution)).groups())
    size = f' width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg"'
    style = f"<style>{html.STYLE}svg{{background:var(--bg);width:{width}px;height:{height}px}}</style>"
    return re.sub(r' style="[^"]*">', f"{size}>{style}", svg, count=1) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--html", type=Path, required=True, metavar="FILE", help="file of the example page")
    parser.parse_args().html.write_text(html.page(example()))
