"""The metrics of one node, as the pod that holds its report serves them."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuworker.fleet.node_server import NodeHandler
from tests.helpers.fleet_reports import failing, node_report


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (node_report("n1"), "PASS"),
        (failing("n1"), "FAIL"),
        ({"verdict": "PASS", "reason": "", "node": "n1"}, "INCOMPLETE"),  # PASS without evidence
    ],
)
def test_metrics_of_a_node(report: dict, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Server", (NodeHandler,), {"report": path})) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        server.shutdown()
    assert f'gpu_accept_fleet_verdict{{verdict="{verdict}"}} 1' in lines
    measured = [line for line in lines if line.startswith('gpu_accept_measurement{node="n1",device="cuda:0"')]
    assert len(measured) == (verdict != "INCOMPLETE")
