"""report-server over HTTP, as probes of the kubelet and the collector use it."""

import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest

from tests.helpers.processes import until


@pytest.fixture
def server(start, tmp_path):
    """A server of tmp_path: the program, and a function that requests a path from it."""
    program = start("-m", "gpuworker.fleet.node_server", "--report-dir", tmp_path, "--port", "0")
    line = until(lambda: re.search(r" port=(\d+)\n", program.output), "the server logs its port")
    program.port = int(line[1])

    def get(path: str) -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{program.port}{path}", timeout=30) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    return program, get


def test_only_a_node_that_passed_is_ready(server, tmp_path):
    program, get = server
    path = tmp_path / "report.json"

    assert get("/readyz")[0] == 503, "no report"
    assert get("/report.json")[0] == 503
    assert get("/readyz")[2].startswith("no report: ")

    for broken in ('{"verdict": "PA', "", "[]", "{}", '"PASS"'):
        path.write_text(broken)
        status, _, text = get("/readyz")
        assert (status, text[:11]) == (503, "no report: "), broken
        assert get("/healthz") == (200, "text/plain; charset=utf-8", "alive\n"), "a bad report restarts nothing"

    for verdict, reason, status in [
        ("PASS", "", 200),
        ("WARN", "compute: near its limit", 200),
        ("FAIL", "compute: 1 of 1024 sampled products are wrong", 503),
        ("INCOMPLETE", "environment: torch sees no GPU, 8 expected", 503),
        ("SKIP", "all checks were left out", 503),
    ]:
        report = {"verdict": verdict, "reason": reason, "node": "gpü-1"}
        path.write_text(json.dumps(report))
        assert get("/readyz") == (status, "text/plain; charset=utf-8", f"{verdict}: {reason or 'all checks'}\n")
        code, kind, text = get("/report.json")
        assert (code, kind, json.loads(text)) == (200, "application/json", report)
        assert get("/healthz")[0] == 200

    status, _, text = get("/metrics/nothing")
    assert (status, text) == (404, "not found; paths: /report.json, /metrics, /readyz, /healthz\n")
    assert len(program.output.splitlines()) == 1, "probes every few seconds must not fill the log"


def test_sigterm_ends_the_server_with_0_despite_a_silent_client(server):
    program, get = server
    with socket.create_connection(("127.0.0.1", program.port)):
        assert get("/healthz")[0] == 200
        program.process.send_signal(signal.SIGTERM)
        assert program.wait(30) == 0
