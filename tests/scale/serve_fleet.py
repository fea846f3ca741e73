"""The collector as a process, over HTTP: python -m tests.scale.serve_fleet --nodes 1000 --gpus 8

Nodes are simulated: threads send the report of one node each, at a random moment. Collector and
HTTP are real.
"""

import argparse
import concurrent.futures
import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gpuworker.fleet import client
from gpuworker.fleet.http_handler import WAITING
from gpuworker.judgement.report import Requested
from tests.helpers.fleet_reports import complete_report
from tests.helpers.processes import environment, free_port

SLOW_NODE, SLOW_GPU = 7, 3


def simulated(nodes: int, gpus: int) -> Iterator[bytes]:
    """Reports of healthy nodes, as JSON, and one slow GPU."""
    chance, pattern = random.Random(1), complete_report("pattern", Requested("cuda", gpus, "quick"))
    for index in range(nodes):
        report = copy.deepcopy(pattern) | {"node": f"gpu-{index:04}", "pod": f"accept-{index:04}"}
        for gpu in next(
            check["facts"]["gpus"] for check in report["checks"] if check["name"] == "environment"
        ):
            gpu["uuid"] = f"GPU-{index}-{gpu['device']}"
        for number in (m for check in report["checks"] for m in check["measurements"]):
            number["value"] *= 1.04 + min(0.03, max(-0.03, chance.gauss(0, 0.01)))
            place = (SLOW_NODE, f"cuda:{SLOW_GPU}", "gemm_bf16")
            number["value"] *= 0.6 if (index, number["device"], number["name"]) == place else 1
        yield json.dumps(report).encode()


def read(url: str) -> str:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=60
        ) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:  # 503: not passed
        return error.read().decode()
    except OSError:
        return WAITING  # it does not listen yet


def measure(nodes: int, gpus: int, spread_s: float) -> dict[str, object]:
    """`spread_s`: time in which the reports arrive."""
    chance, port = random.Random(1), free_port()
    begun, address = time.monotonic() + 5, f"http://127.0.0.1:{port}/reports"
    moments = [begun + chance.random() * spread_s for _ in range(nodes)]

    def send(moment, report):
        time.sleep(max(0.0, moment - time.monotonic()))
        assert client.send(report, address, 120) == ""

    asked = {"--expect-nodes": nodes, "--device": "cuda", "--gpus": gpus, "--level": "quick"}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(64) as pool:
        options = {"--port": port, "--run-id": 1, "--report-dir": folder, **asked}
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "gpuworker.fleet.cli", "serve", "--stay", *words]
        started = time.monotonic()
        collector = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
        try:
            pairs = sorted(
                zip(moments, simulated(nodes, gpus), strict=True), key=lambda pair: pair[0]
            )
            sent = [pool.submit(send, *pair) for pair in pairs]
            for each in sent:
                each.result()
            last = time.monotonic()
            while WAITING in read(f"http://127.0.0.1:{port}/readyz"):
                assert time.monotonic() < last + 120, "no verdict"
                time.sleep(0.2)
            page = read(f"http://127.0.0.1:{port}/page.html")
            shown = time.monotonic() - last
            spent = time.monotonic() - started
            status = Path(f"/proc/{collector.pid}/status").read_text()
            ticks = (
                Path(f"/proc/{collector.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            )
            fleet = json.loads(read(f"http://127.0.0.1:{port}/report.json"))
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait()
    return {
        "nodes": nodes,
        "verdict": fleet["verdict"],
        "page_s_after_last_report": round(shown, 1),
        "worst": fleet["suspects"][0]["node"] + " " + fleet["suspects"][0]["device"],
        "page_bytes": len(page.encode()),
        "peak_mb": int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024,
        "cores": round(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / spent, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument(
        "--spread", type=float, default=60, help="seconds in which the reports arrive"
    )
    args = parser.parse_args()
    print(json.dumps(measure(args.nodes, args.gpus, args.spread), indent=1))
