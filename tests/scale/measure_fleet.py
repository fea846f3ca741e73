"""Memory and time of the collector with simulated reports: python -m tests.scale.measure_fleet --nodes 1000 --gpus 8"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from gpuworker.fleet.collector import FORMATS
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.formats.page import page
from gpuworker.fleet.formats.prometheus import prometheus
from gpuworker.fleet.report_sources import from_text
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.report import Requested
from tests.helpers.fleet_reports import complete_report

SLOW_NODE, SLOW_GPU = 7, 3


def simulated(nodes: int, gpus: int) -> Iterator[bytes]:
    """Reports of healthy nodes, as JSON, and one slow GPU."""
    requested, chance = Requested("cuda", gpus, "quick"), random.Random(1)
    pattern = complete_report("pattern", requested)
    for check in pattern["checks"]:
        check["samples"] = {f"{m['name']} {m['device']}": [0.001] * 40 for m in check["measurements"][:32]}
    for index in range(nodes):
        report = copy.deepcopy(pattern) | {"node": f"gpu-{index:04}", "pod": f"accept-{index:04}"}
        for gpu in next(check["facts"]["gpus"] for check in report["checks"] if check["name"] == "environment"):
            gpu["uuid"] = f"GPU-{index}-{gpu['device']}"
        for number in (m for check in report["checks"] for m in check["measurements"]):
            number["value"] *= 1.04 + min(0.03, max(-0.03, chance.gauss(0, 0.01)))
            if (index, number["device"], number["name"]) == (SLOW_NODE, f"cuda:{SLOW_GPU}", "gemm_bf16"):
                number["value"] *= 0.6
        yield json.dumps(report).encode()


@dataclasses.dataclass
class Figures:
    nodes: int
    report_bytes: int
    intake_s: float  # CPU: parse, validate and judge all reports again
    page_s: float  # wall: from the last report to the page
    page_cpu_s: float
    page_bytes: int
    metrics_series: int
    peak_mb: float  # resident memory of this process, including the page, JSON and metrics
    verdict: str
    worst: str  # the first suspect
    sizes: dict[str, int]  # bytes of every form


def measure(nodes: int, gpus: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        requested = Requested("cuda", gpus, "quick")
        store, size, spent = ReportStore(Path(folder), Expected(nodes, run_id="1", requested=requested), True), 0, 0.0
        for data in simulated(nodes, gpus):
            size, start = len(data), time.process_time()
            (source,) = from_text("simulated", data)
            status, answer = store.add(source.report)
            spent += time.process_time() - start
            if status != HTTPStatus.OK:
                sys.exit(f"the collector refused a report: {answer}")
        sizes, start, cpu = {}, time.monotonic(), time.process_time()
        fleet = store.fleet()
        text = page(fleet)
        taken, cpu = time.monotonic() - start, time.process_time() - cpu
        for path, (form, _) in FORMATS.items():
            sizes[path] = len(form(fleet))
        metrics = sum(not line.startswith("#") for line in prometheus(fleet).splitlines())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    worst = fleet.suspects[0].part if fleet.suspects else ""
    return Figures(nodes, size, spent, taken, cpu, len(text.encode()), metrics, peak, fleet.verdict, worst, sizes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    args = parser.parse_args()
    print(json.dumps(dataclasses.asdict(measure(args.nodes, args.gpus)), indent=1))
