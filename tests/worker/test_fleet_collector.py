"""accept-report serve and submit, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuworker.accept.report import to_log_lines
from gpuworker.fleet import cli, collector, http_handler, node_server, submit
from gpuworker.fleet import poller as poller_module
from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.http_handler import ReportServer
from gpuworker.fleet.poller import Poller
from gpuworker.fleet.report_store import ReportStore
from tests.helpers.fleet_reports import failing, node_report
from tests.helpers.processes import free_port, until

SERVICE = "reports.example"


class Pod(BaseHTTPRequestHandler):
    """A node's pod: answers with `answers[address]`, and with 503 if that is not set."""

    answers: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        address = self.server.server_address[0]
        self.requests.append(address)
        body = self.answers.get(address)
        self.send_response(200 if body is not None else 503)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_) -> None:
        pass


class Pods:
    """Pods at 127.0.0.1, 127.0.0.2, … on one port, behind a name that a replaced `getaddrinfo` resolves."""

    def __init__(self, stack: contextlib.ExitStack, monkeypatch) -> None:
        self.stack, self.names, self.port = stack, [], 0
        self.handler = type("Handler", (Pod,), {"answers": {}, "requests": []})
        self.failure: int | None = None
        self.real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host: str, port: int, family: int = 0, type: int = 0, *rest: int) -> list:
        if host != SERVICE:
            return self.real(host, port, family, type, *rest)
        if self.failure:
            raise socket.gaierror(self.failure, "made up")
        if not self.names:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, type, 6, "", (name, port)) for name in self.names]

    def start(self, report: dict | bytes | None = None) -> str:
        address = f"127.0.0.{len(self.names) + 2}"
        server = self.stack.enter_context(ThreadingHTTPServer((address, self.port), self.handler))
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.stack.callback(server.shutdown)
        self.names.append(address)
        self.answer(address, report)
        return address

    def answer(self, address: str, report: dict | bytes | None) -> None:
        if report is None:
            self.handler.answers.pop(address, None)
        else:
            self.handler.answers[address] = report if isinstance(report, bytes) else json.dumps(report).encode()


@pytest.fixture
def pods(monkeypatch) -> Iterator[Pods]:
    with contextlib.ExitStack() as stack:
        yield Pods(stack, monkeypatch)


def poller_of(pods: Pods, store: ReportStore) -> Poller:
    return Poller(store, SERVICE, pods.port)


def drips(stack: contextlib.ExitStack, address: str, port: int, first: bytes) -> None:
    """A pod that never ends its answer, and never pauses for long."""
    listener = stack.enter_context(socket.create_server((address, port)))

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.sendall(first)
            while True:
                connection.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=serve, daemon=True).start()
    stack.callback(listener.shutdown, socket.SHUT_RDWR)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_pod_that_drips_its_answer_holds_up_nobody(pods: Pods, tmp_path: Path, monkeypatch, first: bytes) -> None:
    monkeypatch.setattr(poller_module, "FETCH_S", 1)
    pods.start(node_report("n1"))
    pods.names.append("127.0.0.9")
    drips(pods.stack, "127.0.0.9", pods.port, first)
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    started = time.monotonic()
    poller_of(pods, store).poll()
    assert time.monotonic() - started < 20
    assert [node.node for node in store.fleet().nodes] == ["n1"]
    assert "pod 127.0.0.9 runs and has no report yet" in store.fleet().reason


def test_the_fleet_is_complete_when_all_pods_have_reported(pods: Pods, tmp_path: Path) -> None:
    first, second = pods.start(), pods.start(node_report("n2"))
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    poller = poller_of(pods, store)
    poller.poll()
    assert (store.fleet().verdict, len(store.fleet().nodes)) == ("INCOMPLETE", 1)
    assert f"pod {first} runs and has no report yet" in store.fleet().reason
    pods.answer(first, node_report("n1"))
    poller.poll()
    assert (store.fleet().verdict, store.fleet().coverage.nodes_reported) == ("PASS", 2)
    assert pods.handler.requests.count(second) == 1  # fetched again after REFRESH_S only


def test_a_failed_node_fails_the_fleet(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1")), pods.start(failing("n2"))
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    poller_of(pods, store).poll()
    assert store.fleet().verdict == "FAIL"


@pytest.mark.parametrize("answer", [b"{", b"", b'{"checks": []}', b"x" * 100])
def test_a_pod_whose_answer_is_not_a_report_is_named(answer: bytes, pods: Pods, tmp_path: Path) -> None:
    address = pods.start(answer)
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    poller_of(pods, store).poll()
    assert store.fleet().verdict == "INCOMPLETE" and f"pod {address}" in store.fleet().reason


def test_an_answer_that_is_too_long_is_refused(pods: Pods, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(poller_module, "MOST_REPORT_BYTES", 1000)
    pods.start(b" " * 5000)
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    poller_of(pods, store).poll()
    assert "more than 1000 bytes" in store.fleet().reason


def test_the_report_of_a_lost_pod_is_shown_and_is_no_pass(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1")), pods.start(node_report("n2"))
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    poller = poller_of(pods, store)
    poller.poll()
    names, pods.names = pods.names, []
    poller.poll()
    fleet = store.fleet()
    assert fleet.verdict == "INCOMPLETE" and all(node.last_seen for node in fleet.nodes)
    assert [(found.verdict, found.node) for found in fleet.findings] == [("INCOMPLETE", "n1"), ("INCOMPLETE", "n2")]
    pods.names = names
    poller.poll()
    assert store.fleet().verdict == "PASS" and not any(node.last_seen for node in store.fleet().nodes)


def test_a_failing_dns_server_does_not_make_pods_lost(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1"))
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    poller = poller_of(pods, store)
    poller.poll()
    pods.failure = socket.EAI_AGAIN
    poller.poll()
    assert not any(node.last_seen for node in store.fleet().nodes)


def test_a_pod_with_a_report_of_an_earlier_run_is_pending(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1", run_id="1"))
    store = ReportStore(tmp_path, Expected(1, run_id="2"))
    poller_of(pods, store).poll()
    assert (store.fleet().verdict, store.fleet().nodes) == ("INCOMPLETE", [])


def test_a_restarted_collector_keeps_its_reports(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1"))
    poller_of(pods, ReportStore(tmp_path, Expected(1, run_id="1"))).poll()
    restarted = ReportStore(tmp_path, Expected(1, run_id="1"))
    assert [node.node for node in restarted.fleet().nodes] == ["n1"]
    restarted.update(set(), set(), {})
    assert restarted.fleet().verdict == "INCOMPLETE", "its pod may be gone"
    poller_of(pods, restarted).poll()
    assert restarted.fleet().verdict == "PASS"
    assert ReportStore(tmp_path, Expected(1, run_id="2")).fleet().nodes == []


def test_the_result_is_rebuilt_only_after_a_change(pods: Pods, tmp_path: Path) -> None:
    pods.start(node_report("n1"))
    store = ReportStore(tmp_path, Expected(1, run_id="1"))
    poller = poller_of(pods, store)
    poller.poll()
    before = store.fleet()
    poller.poll()
    assert store.fleet() is before
    store.add(node_report("n2"), "")
    assert store.fleet() is not before


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, ReportStore]]:
    """A collector with one node and without pods to poll."""
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    store.add(node_report("n1"), "")
    handler = type("Collector", (CollectorHandler,), {"store": store, "accept_posts": True})
    with ReportServer(0, handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", store
        server.shutdown()


def test_every_format_is_served_with_a_policy_against_scripts(served) -> None:
    url, _ = served
    starts = {
        "/": "<!DOCTYPE html>",
        "/report.json": '{"verdict": "INCOMPLETE"',
        "/junit.xml": "<?xml",
        "/metrics": "# HELP gpu_accept_fleet_verdict",
        "/healthz": "alive",
    }
    for path, start in starts.items():
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            assert answer.read().decode().startswith(start)
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + "/other", timeout=10)
    with refused.value as answer:
        assert answer.code == 404 and "/junit.xml" in answer.read().decode()


def awaited(url: str, timeout_s: float = 5) -> int:
    """The exit code of accept-report await."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["await", url, "--timeout", str(timeout_s)])
    return ended.value.code


def ready(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_collector_is_ready_when_the_whole_fleet_passed_and_await_ends_with_the_verdict(served) -> None:
    url, store = served
    assert (ready(url), awaited(url, 0.2)) == (503, 3)
    store.add(node_report("n2"), "")
    assert (ready(url), awaited(url)) == (200, 0)
    store.update(set(), {"10.0.0.9"}, {})
    assert (ready(url), awaited(url, 0.2)) == (503, 3)
    store.update(set(), set(), {})
    store.add(failing("n2"), "")
    assert (ready(url), awaited(url)) == (503, 1)


def test_await_ends_without_a_collector(capsys) -> None:
    assert awaited("http://127.0.0.1:1", 0.1) == 3 and "INCOMPLETE" in capsys.readouterr().out


def submitted(path: Path, url: str, timeout_s: float = 5) -> int:
    """The exit code of accept-report submit."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["submit", str(path), "--to", f"{url}/reports", "--timeout", str(timeout_s)])
    return ended.value.code


def test_submit_logs_the_node_of_the_report(served, tmp_path: Path, capsys) -> None:
    url, _ = served
    path = tmp_path / "report.json"
    path.write_text(json.dumps(node_report("gpu-7")))
    submitted(path, url)
    assert capsys.readouterr().out.startswith("[RESULT] node=gpu-7 verdict=PASS submitted=true")


def test_submit_sends_the_report_and_exits_with_its_verdict(served, tmp_path: Path) -> None:
    url, store = served
    path = tmp_path / "report.json.txt"
    for report, code, verdict in (
        (node_report("n2"), 0, "PASS"),
        (failing("n2"), 1, "FAIL"),
        (node_report("n2", started="2026-01-05T11:00:00+00:00"), 0, "FAIL"),
    ):
        path.write_text(json.dumps(report))
        assert submitted(path, url) == code
        assert (store.fleet().verdict, store.fleet().coverage.nodes_reported) == (verdict, 2)
    assert any(note.startswith("n2: several reports") for note in store.fleet().notes)


def test_two_pods_of_a_job_on_one_node_are_not_two_nodes(served, tmp_path: Path) -> None:
    """On fewer nodes than pods, the Job would complete: the scheduler does not see pods that have ended."""
    url, store = served
    path = tmp_path / "report.json.txt"
    for pod, code in (("accept-0-aaaaa", 0), ("accept-0-bbbbb", 0), ("accept-1-ccccc", 3)):
        path.write_text(json.dumps(node_report("n2", pod=pod)))
        assert submitted(path, url) == code
    path.write_text(json.dumps({**failing("n2"), "pod": "accept-1-ddddd"}))
    assert submitted(path, url) == 1 and store.fleet().verdict == "FAIL"


def test_a_report_that_was_not_accepted_is_not_a_pass(served, tmp_path: Path, capsys) -> None:
    url, store = served
    path = tmp_path / "report.json.txt"
    path.write_text(json.dumps(node_report("n2", run_id="9")))
    assert submitted(path, url, 0.3) == 3
    assert "answers 409" in capsys.readouterr().out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # does not listen
        assert submitted(path, f"http://127.0.0.1:{taken.getsockname()[1]}", 0.3) == 3
    assert submitted(tmp_path / "absent", url) == 3
    assert store.fleet().coverage.nodes_reported == 1


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"{", {}, 400),
        (b"[" * 200_000, {}, 400),
        (b"{" + b'"a":{' * 100_000, {}, 400),
        (json.dumps(node_report("n2", facts={"a": json.loads("[" * 495 + "]" * 495)})).encode(), {}, 400),
        (json.dumps(node_report("n" * 254)).encode(), {}, 400),
        ("\n".join(to_log_lines(node_report("n2", reason="x" * 20_000_000))).encode(), {}, 400),
        (b"x", {"Content-Length": str(1 << 40)}, 413),
        (b"x", {"Content-Length": "-1"}, 413),
        (b"x", {"Content-Length": "9" * 5000}, 413),
    ],
)
def test_a_post_that_is_not_a_report_is_refused(served, body: bytes, headers: dict, code: int) -> None:
    url, store = served
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/reports", body, headers)
        assert connection.getresponse().status == code
    assert store.fleet().coverage.nodes_reported == 1


def post(url: str, report: dict) -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/reports", json.dumps(report).encode())
        return connection.getresponse().status


def test_a_report_that_cannot_be_stored_is_not_acknowledged(served, monkeypatch) -> None:
    """It is on the disk before the answer, and a full disk loses no report that was acknowledged."""
    url, store = served
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(file) or real(file))
    assert post(url, node_report("n2")) == 200 and len(synced) == 1

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert post(url, failing("n3")) == 507
    restarted = ReportStore(store.folder, store.expected, keep_gone=True)
    for each in (store, restarted):
        assert [node.node for node in each.fleet().nodes] == ["n1", "n2"]


def test_a_merge_that_takes_long_is_not_repeated_at_once_while_reports_are_expected(served) -> None:
    url, store = served
    store.count, before = 4, store.fleet()
    store.merge_cpu_s = 1e6
    assert post(url, node_report("n2")) == 200
    assert store.fleet() is before
    store.merged_at -= 1e7
    assert len(store.fleet().nodes) == len(before.nodes) + 1
    assert store.merge_cpu_s < 1e6


def test_the_last_report_is_merged_at_once_however_long_it_takes(served) -> None:
    url, store = served
    store.count, before = 2, store.fleet()
    store.merge_cpu_s = 1e6
    assert post(url, node_report("n2")) == 200
    assert len(store.fleet().nodes) == len(before.nodes) + 1


def test_the_number_of_reports_is_bounded(served, monkeypatch) -> None:
    url, store = served
    store.most = 2
    assert [post(url, node_report(name)) for name in ("n2", "n3", "n2")] == [200, 507, 200]


def test_a_restart_writes_nothing_and_a_damaged_file_costs_its_own_row_only(served, monkeypatch) -> None:
    _, store = served
    (store.folder / "0.json").write_bytes(b"\x80 damaged")
    (store.folder / "1.json").mkdir()
    before = {path: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("a report was written again"))
    restarted = ReportStore(store.folder, store.expected, keep_gone=True)
    assert [node.node for node in restarted.fleet().nodes] == ["n1"] and "0.json" in restarted.fleet().reason
    assert {path: path.stat().st_mtime_ns for path in store.folder.iterdir()} == before


def test_a_node_with_the_longest_legal_name_is_stored(served) -> None:
    """As a file name in hexadecimal digits it would be longer than a file system allows."""
    _, store = served
    assert store.add(node_report("n" * 253, run_id="1"), "10.0.0.1")[0] == 200
    assert len(list(store.folder.glob("*.json"))) == 2


def test_a_report_that_starts_in_the_future_hides_no_other(served) -> None:
    url, store = served
    assert post(url, failing("n2")) == 200
    assert post(url, node_report("n2", started="2099-01-01T00:00:00+00:00")) == 200
    assert (store.fleet().verdict, store.fleet().nodes[1].verdict) == ("FAIL", "FAIL")


def test_a_pod_at_the_address_of_another_shows_that_the_other_is_gone(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    store.add(node_report("n1"), "10.0.0.1")
    store.add(node_report("n2"), "10.0.0.1")
    store.update({"10.0.0.1"}, set(), {})
    assert [node.verdict for node in store.fleet().nodes] == ["INCOMPLETE", "PASS"]


KEY = b"k" * 32


@pytest.fixture
def signed(served, tmp_path: Path, monkeypatch) -> Iterator[tuple[str, ReportStore]]:
    """A collector with a key, which the other parts of this process have, too."""
    file = tmp_path / "key"
    file.write_bytes(KEY)
    monkeypatch.setenv("GPU_CHARTS_KEY_FILE", str(file))
    monkeypatch.setattr(CollectorHandler, "key", KEY, raising=False)
    return served


def signed_headers(url: str, body: bytes, key: bytes) -> dict:
    return dict(submit._request(urllib.request.build_opener(), body, f"{url}/reports", key).header_items())


def test_a_report_with_the_key_of_the_release_is_accepted(signed, tmp_path: Path) -> None:
    url, store = signed
    path = tmp_path / "report.json.txt"
    path.write_text(json.dumps(failing("n2")))
    assert submitted(path, url) == 1
    assert [(node.node, node.verdict) for node in store.fleet().nodes] == [("n1", "PASS"), ("n2", "FAIL")]


def test_a_report_without_the_key_or_of_an_earlier_message_is_refused(signed) -> None:
    url, store = signed
    body = json.dumps(node_report("n2")).encode()
    other = json.dumps(node_report("n3")).encode()
    once = signed_headers(url, body, KEY)
    no_nonce = {**signed_headers(url, body, KEY), "X-nonce": "x"}
    attempts = [
        ({}, body, 401),
        (signed_headers(url, body, b"o" * 32), body, 401),
        (no_nonce, body, 401),
        (once, other, 401),  # the nonce is used by this attempt
        (once, body, 401),
        (signed_headers(url, body, KEY), body, 200),
    ]
    for headers, sent, code in attempts:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/reports", sent, headers)
            assert connection.getresponse().status == code
    assert [node.node for node in store.fleet().nodes] == ["n1", "n2"]


def test_senders_without_the_key_hold_no_place(signed) -> None:
    """They announce a body and send none, more of them than the collector receives at a time."""
    url, _ = signed
    address = urllib.parse.urlsplit(url)
    with contextlib.ExitStack() as stack:
        for _ in range(2 * collector.MOST_POSTS):
            connection = stack.enter_context(socket.create_connection((address.hostname, address.port)))
            connection.sendall(b"POST /reports HTTP/1.0\r\nContent-Length: 9\r\nX-Nonce: x\r\n\r\n")
        assert submit.send(json.dumps(node_report("n2")).encode(), f"{url}/reports", 5, KEY) == ""


def test_posts_that_drip_hold_no_place(served, monkeypatch) -> None:
    """Without a key: they send a byte now and then, more of them than the collector receives at a time."""
    monkeypatch.setattr(collector, "POST_S", 1)
    url, store = served
    address, over = urllib.parse.urlsplit(url), threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError), socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(b"POST /reports HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b"x")

    threads = [threading.Thread(target=drip, daemon=True) for _ in range(2 * collector.MOST_POSTS)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)  # until they have all places
        assert submit.send(json.dumps(node_report("n2")).encode(), f"{url}/reports", 15) == ""
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert store.fleet().coverage.nodes_reported == 2


def test_more_connections_than_allowed_close_the_oldest(signed) -> None:
    url, _ = signed
    address = urllib.parse.urlsplit(url)
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection((address.hostname, address.port)))
            for _ in range(2 * http_handler.MAX_CONNECTIONS)
        ]
        held[0].settimeout(60)
        assert held[0].recv(1) == b""
        assert submit.send(json.dumps(node_report("n2")).encode(), f"{url}/reports", 60, KEY) == ""


def test_only_signed_answers_of_pods_count_with_a_key(pods: Pods, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(failing("n2")))
    handler = type("Node", (node_server.NodeHandler,), {"report": path, "key": KEY, "answers": {}})
    store = ReportStore(tmp_path / "kept", Expected(2, run_id="1"))
    (tmp_path / "kept").mkdir()
    pods.start(node_report("n2"))  # a stranger at an address of the Service
    Poller(store, SERVICE, pods.port, KEY).poll()
    assert store.fleet().coverage.nodes_reported == 0
    assert any("no valid signature" in finding.reason for finding in store.fleet().findings)
    pods.handler = handler
    pods.start()
    Poller(store, SERVICE, pods.port, KEY).poll()
    assert [(node.node, node.verdict) for node in store.fleet().nodes] == [("n2", "FAIL")]


@pytest.mark.parametrize("key", [b"", KEY])
def test_a_pod_is_asked_again_for_changes_only(key: bytes, pods: Pods, tmp_path: Path) -> None:
    path, statuses = tmp_path / "report.json", []
    path.write_text(json.dumps(node_report("n1")))

    class Node(node_server.NodeHandler):
        def send_response(self, code: int, message: str | None = None) -> None:
            statuses.append(code)
            super().send_response(code, message)

    Node.report, Node.key, Node.answers = path, key, {}
    pods.handler = Node
    (tmp_path / "kept").mkdir()
    store, address = ReportStore(tmp_path / "kept", Expected(1, run_id="1")), pods.start()
    poller = Poller(store, SERVICE, pods.port, key)
    for report in (node_report("n1"), node_report("n1"), failing("n1")):
        path.write_text(json.dumps(report))
        poller.poll()
        assert address in poller.fetched
        poller.fetched[address] -= 2 * poller_module.REFRESH_S
    assert statuses == [200, 304, 200]
    assert [(node.node, node.verdict) for node in store.fleet().nodes] == [("n1", "FAIL")]


def test_an_unsigned_answer_without_a_change_does_not_count_with_a_key(pods: Pods, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(node_report("n1")))
    pods.handler = type("Node", (node_server.NodeHandler,), {"report": path, "key": KEY, "answers": {}})
    (tmp_path / "kept").mkdir()
    store, address = ReportStore(tmp_path / "kept", Expected(1, run_id="1")), pods.start()
    poller = Poller(store, SERVICE, pods.port, KEY)
    poller.poll()
    assert store.fleet().verdict == "PASS"
    pods.handler.key = b""  # a stranger at the address of the pod, which knows what it serves
    poller.fetched[address] -= 2 * poller_module.REFRESH_S
    poller.poll()
    assert store.fleet().verdict == "INCOMPLETE"
    assert any("no valid signature" in finding.reason for finding in store.fleet().findings)


def test_a_folder_that_cannot_be_used_is_named(start, tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    arguments = ["--service=localhost", "--run-id=1", f"--port={free_port()}", f"--report-dir={tmp_path}/reports"]
    program = start("-m", "gpuworker.fleet.cli", "serve", *arguments)
    assert program.wait() == 1
    assert "[FATAL]" in program.output and "reports" in program.output and "Traceback" not in program.output


def test_posts_are_refused_by_default(served, tmp_path: Path) -> None:
    _, store = served
    handler = type("Collector", (CollectorHandler,), {"store": store, "accept_posts": False})
    with ReportServer(0, handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        why = submit.send(json.dumps(node_report("n2")).encode(), f"http://127.0.0.1:{server.server_port}/reports", 0.3)
        server.shutdown()
    assert "404" in why and store.fleet().coverage.nodes_reported == 1


def test_collector_fetches_from_node_server_and_sigterm_ends_it_with_0(start, tmp_path: Path) -> None:
    """report-server and accept-report serve as their containers run them."""
    (tmp_path / "report.json").write_text(json.dumps(node_report("n1")))
    node = start("-m", "gpuworker.fleet.node_server", "--report-dir", tmp_path, "--port", "0")
    port = until(lambda: re.search(r" port=(\d+)\n", node.output), "the node server logs its port")[1]
    options = {"--service": "127.0.0.1", "--service-port": port, "--port": 0, "--run-id": 1, "--expect-nodes": 1}
    words = [str(word) for pair in options.items() for word in pair]
    fleet = start("-m", "gpuworker.fleet.cli", "serve", *words, "--interval", "0.1", "--report-dir", tmp_path / "kept")
    served = until(lambda: re.search(r" port=(\d+) ", fleet.output), "the collector logs its port")[1]
    until(lambda: 'summary="PASS: 1 of 1 nodes reported, 2 of 2 GPUs"' in fleet.output, "the collector has the report")
    with urllib.request.urlopen(f"http://127.0.0.1:{served}/report.json", timeout=30) as answer:
        assert json.loads(answer.read())["nodes"][0]["node"] == "n1"
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait() == 0, fleet.output
