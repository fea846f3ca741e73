"""The collector as a process, over HTTP from 1,000 addresses: python -m tests.scale.serve_fleet --nodes 1000 --gpus 8

Nodes and DNS are simulated: one server answers on as many loopback addresses with the report of one node each, which
it has from a random moment on. Collector and HTTP are real.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import ClassVar

from gpuworker.fleet.await_verdict import WAITING
from gpuworker.fleet.http_handler import TEXT, ReportHandler, ReportServer
from tests.helpers.processes import free_port
from tests.scale.measure_fleet import simulated

COLLECTOR = """
import socket, sys
nodes, found = int(sys.argv.pop(1)), socket.getaddrinfo
def addresses(host, port, *rest, **more):
    if host != "fleet":
        return found(host, port, *rest, **more)
    names = [f"127.9.{i // 250}.{i % 250 + 1}" for i in range(nodes)]
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]
socket.getaddrinfo = addresses
from gpuworker.fleet.cli import main
sys.exit(main())
"""


class Nodes(ReportHandler):
    paths = ("/report.json",)
    reports: ClassVar[dict[str, tuple[float, str]]] = {}  # address -> when it has a report, and the report

    def get(self, path: str) -> tuple[int, str, str]:
        at, report = self.reports[re.search(r"[\d.]+$", self.connection.getsockname()[0])[0]]
        return (200, report, "application/json") if time.monotonic() > at else (503, "no report yet\n", TEXT)


def read(url: str) -> str:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:  # 503: not passed
        return error.read().decode()
    except OSError:
        return WAITING  # it does not listen yet


def measure(nodes: int, gpus: int, spread_s: float) -> dict[str, object]:
    """`spread_s`: time in which the reports arrive."""
    chance, port = random.Random(1), free_port()
    reports = [report.decode() for report in simulated(nodes, gpus)]
    begun = time.monotonic() + 5
    for index, report in enumerate(reports):
        Nodes.reports[f"127.9.{index // 250}.{index % 250 + 1}"] = begun + chance.random() * spread_s, report
    last = max(at for at, _ in Nodes.reports.values())
    with ReportServer(0, Nodes) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--service", "fleet", "--service-port", server.server_port, "--port", port, "--run-id", "1"]
        options += [
            "--report-dir",
            folder,
            "--expect-nodes",
            nodes,
            "--device",
            "cuda",
            "--gpus",
            gpus,
            "--level",
            "quick",
        ]
        command = [sys.executable, "-c", COLLECTOR, str(nodes), "serve", *map(str, options)]
        started = time.monotonic()
        collector = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while WAITING in read(f"http://127.0.0.1:{port}/readyz"):
                time.sleep(0.2)
            page = read(f"http://127.0.0.1:{port}/")
            shown = time.monotonic() - last
            metrics = read(f"http://127.0.0.1:{port}/metrics")
            spent = time.monotonic() - started
            status = Path(f"/proc/{collector.pid}/status").read_text()
            ticks = Path(f"/proc/{collector.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            fleet = json.loads(read(f"http://127.0.0.1:{port}/report.json"))
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait()
    return {
        "nodes": nodes,
        "verdict": fleet["verdict"],
        "page_s_after_last_report": round(shown, 1),
        "page_bytes": len(page.encode()),
        "metrics_series": sum(not line.startswith("#") for line in metrics.splitlines()),
        "peak_mb": int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024,
        "cores": round(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / spent, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--spread", type=float, default=60, help="seconds in which the reports arrive")
    args = parser.parse_args()
    print(json.dumps(measure(args.nodes, args.gpus, args.spread), indent=1))
