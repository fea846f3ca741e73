"""accept-report serve and submit, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuworker.fleet import cli, client, collector, http_handler, report_store
from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.http_handler import ReportServer
from gpuworker.fleet.report_sources import read
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.merge import merge
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import broken_report, complete_report, source
from tests.helpers.processes import free_port, until


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds that have passed beside those of the clock."""
    passed, real = [0.0], time.monotonic
    monkeypatch.setattr(report_store.time, "monotonic", lambda: real() + passed[0])
    return passed


def fleet_after(store: ReportStore) -> Fleet:
    store.watch()
    return store.fleet()


def test_a_pod_that_is_not_heard_of_is_lost_and_is_no_pass(
    tmp_path: Path, clock: list[float]
) -> None:
    store = ReportStore(tmp_path, Expected(2, run_id="1"), stay=True)
    for name in ("n1", "n2"):
        store.add(source(complete_report(name)).report, name)
    assert fleet_after(store).verdict == "PASS"
    clock[0] = report_store.LOST_S + 1
    assert store.confirm("n1") and not store.confirm("unknown")
    fleet = fleet_after(store)
    assert [(node.verdict, bool(node.last_seen)) for node in fleet.nodes] == [
        ("PASS", False),
        ("INCOMPLETE", True),
    ]
    assert [(found.kind, found.node) for found in fleet.findings] == [
        ("pod-gone", "n2")
    ] and store.waiting()
    store.confirm("n2")
    assert fleet_after(store).verdict == "PASS" and not store.waiting()


def test_what_an_earlier_collector_kept_counts_when_its_pod_has_confirmed_it(
    tmp_path: Path,
) -> None:
    """It may be of an earlier installation on the same claim, whose nodes are not tested any more."""
    first = ReportStore(tmp_path, Expected(1, run_id="1"), stay=True)
    first.add(source(complete_report("n1")).report, "digest")
    again = ReportStore(tmp_path, Expected(1, run_id="1"), stay=True)
    assert again.fleet().verdict == "INCOMPLETE" and not again.confirm("digest")
    again.add(source(complete_report("n1")).report, "digest")
    assert again.fleet().verdict == "PASS" and again.confirm("digest")
    assert ReportStore(tmp_path, Expected(1, run_id="2")).fleet().nodes == []


def test_each_installation_keeps_its_reports_in_a_folder_of_its_own(
    monkeypatch, tmp_path: Path
) -> None:
    """By the address of its Service. A Job's reports are there again after the page was replaced,
    and for no other.
    """
    names = {"accept-fleet": "10.96.0.7"}
    found = lambda name, _: [(0, 0, 0, "", (names[name], 0))]  # noqa: E731
    monkeypatch.setattr(collector.socket, "getaddrinfo", found)
    stores = []
    for address in ("10.96.0.7", "10.96.0.7", "10.96.0.9"):
        names["accept-fleet"] = address
        stores.append(
            ReportStore(
                made(tmp_path / collector.address_of("accept-fleet")), Expected(1, run_id="1")
            )
        )
        if len(stores) == 1:
            stores[0].add(source(complete_report("n1")).report, "digest")
    assert [store.fleet().verdict for store in stores] == ["PASS", "PASS", "INCOMPLETE"]


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("first", ["FAIL", "PASS"])
def test_a_node_that_another_pod_has_tested_again_has_its_verdict(
    tmp_path: Path, first: str, hours: int
) -> None:
    """A repaired node; and one that passed before it broke. The clock of the node may be behind."""
    makes = {"FAIL": broken_report, "PASS": complete_report}
    old, new = makes.pop(first)("n1"), next(iter(makes.values()))("n1")
    new |= {"pod": "accept-n2", "started": f"2026-01-05T{10 + hours:02}:00:00+00:00"}
    store = ReportStore(tmp_path, Expected(1, run_id="1"), stay=True)
    for number, report in enumerate([old, new]):
        assert store.add(source(report).report, str(number))[0] == 200
    fleet = store.fleet()
    assert fleet.verdict == ({"FAIL", "PASS"} - {first}).pop()
    assert any(first in note and "accept-n1" in note for note in fleet.notes)


def test_the_result_is_rebuilt_only_after_a_change(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, Expected(1, run_id="1"), stay=True)
    store.add(source(complete_report("n1")).report, "n1")
    before = store.fleet()
    store.add(source(complete_report("n1")).report, "n1")
    assert fleet_after(store) is before
    store.add(source(complete_report("n2")).report, "n2")
    assert store.fleet() is not before


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, ReportStore]]:
    """A collector that has the report of one node."""
    store = ReportStore(tmp_path, Expected(2, run_id="1"))
    store.add(source(complete_report("n1")).report)
    handler = type("Collector", (CollectorHandler,), {"store": store})
    with ReportServer(0, handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}", store
        server.shutdown()


def test_every_format_is_served_with_a_policy_against_scripts(served) -> None:
    url, _ = served
    starts = {
        "/": "<!DOCTYPE html>",
        "/report.json": '{"verdict":"INCOMPLETE"',
        "/page.html": "<!DOCTYPE html>",
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
        assert answer.code == 404


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


def test_the_collector_is_ready_when_the_whole_fleet_passed_and_await_ends_with_the_verdict(
    served,
) -> None:
    url, store = served
    assert (ready(url), awaited(url, 0.2)) == (503, 3)
    store.add(source(complete_report("n2")).report)
    assert (ready(url), awaited(url)) == (200, 0)
    store.watch({"accept-x": ("n9", "no-report", "is Pending")})
    assert (ready(url), awaited(url, 0.2)) == (503, 3)
    store.watch({})
    store.add(source(broken_report("n2")).report)
    assert (ready(url), awaited(url)) == (503, 1)
    rehearsal = broken_report("n2")
    rehearsal["requested"]["device"] = "cpu"
    store.add(source(rehearsal).report)
    assert store.fleet().rehearsal and awaited(url) == 1


def submitted(path: Path, url: str, timeout_s: float = 5) -> int:
    """The exit code of accept-report submit."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["submit", str(path), "--to", f"{url}/reports", "--timeout", str(timeout_s)])
    return ended.value.code


def test_submit_sends_the_report_and_exits_with_its_verdict(served, tmp_path: Path) -> None:
    url, store = served
    path = tmp_path / "report.json.txt"
    for report, code, verdict in (
        (complete_report("n2"), 0, "PASS"),
        (broken_report("n2"), 1, "FAIL"),
        (complete_report("n2", started="2026-01-05T11:00:00+00:00"), 0, "FAIL"),
    ):
        path.write_text(json.dumps(report))
        assert submitted(path, url) == code
        assert (store.fleet().verdict, store.fleet().coverage.nodes_reported) == (verdict, 2)
    assert any(note.startswith("n2: ") for note in store.fleet().notes)


def test_two_pods_of_a_job_on_one_node_are_not_two_nodes(served, tmp_path: Path) -> None:
    """On fewer nodes than pods, the Job would complete: the scheduler does not see pods that have
    ended.
    """
    url, store = served
    path = tmp_path / "report.json.txt"
    for pod, code in (("accept-0-aaaaa", 0), ("accept-0-bbbbb", 0), ("accept-1-ccccc", 3)):
        path.write_text(json.dumps(complete_report("n2", pod=pod)))
        assert submitted(path, url) == code
    path.write_text(json.dumps({**broken_report("n2"), "pod": "accept-1-ddddd"}))
    assert submitted(path, url) == 1 and store.fleet().verdict == "FAIL"


def test_a_report_that_was_not_accepted_is_not_a_pass(served, tmp_path: Path, capsys) -> None:
    url, store = served
    path = tmp_path / "report.json.txt"
    path.write_text(json.dumps(complete_report("n2", run_id="9")))
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
        (
            json.dumps(
                complete_report("n2", facts={"a": json.loads("[" * 495 + "]" * 495)})
            ).encode(),
            {},
            400,
        ),
        (json.dumps(complete_report("n" * 254)).encode(), {}, 400),
        (b"x", {"Content-Length": str(1 << 40)}, 413),
        (b"x", {"Content-Length": "-1"}, 413),
        (b"x", {"Content-Length": "9" * 5000}, 413),
    ],
)
def test_a_post_that_is_not_a_report_is_refused(
    served, body: bytes, headers: dict, code: int
) -> None:
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
    assert post(url, complete_report("n2")) == 200 and len(synced) == 1

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert post(url, broken_report("n3")) == 507
    restarted = ReportStore(store.folder, store.expected)
    for each in (store, restarted):
        assert [node.node for node in each.fleet().nodes] == ["n1", "n2"]


def test_a_merge_that_takes_long_is_not_repeated_at_once_while_reports_are_expected(served) -> None:
    url, store = served
    store.expected, before = Expected(4, run_id="1"), store.fleet()
    store.merge_cpu_s = 1e6
    assert post(url, complete_report("n2")) == 200
    assert store.fleet() is before
    store.merged_at -= 1e7
    assert len(store.fleet().nodes) == len(before.nodes) + 1
    assert store.merge_cpu_s < 1e6


def test_the_number_of_reports_is_bounded(served, monkeypatch) -> None:
    url, store = served
    store.most = 2
    assert [post(url, complete_report(name)) for name in ("n2", "n3", "n2")] == [200, 507, 200]


def test_a_report_that_starts_in_the_future_hides_no_other(served) -> None:
    url, store = served
    assert post(url, broken_report("n2")) == 200
    assert post(url, complete_report("n2", started="2099-01-01T00:00:00+00:00")) == 200
    assert (store.fleet().verdict, store.fleet().nodes[1].verdict) == ("FAIL", "FAIL")


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
    return client.signature(f"{url}/reports", body, key)


def test_a_report_without_the_key_or_of_an_earlier_message_is_refused(signed) -> None:
    url, store = signed
    body = json.dumps(complete_report("n2")).encode()
    other = json.dumps(complete_report("n3")).encode()
    once = signed_headers(url, body, KEY)
    no_nonce = {**signed_headers(url, body, KEY), "X-Nonce": "x"}
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


def test_posts_that_drip_hold_no_place(served, monkeypatch) -> None:
    """Without a key: they send a byte now and then, more of them than the collector receives at a
    time.
    """
    monkeypatch.setattr(collector, "POST_S", 1)
    url, store = served
    address, over = urllib.parse.urlsplit(url), threading.Event()

    def drip() -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address.hostname, address.port)) as connection,
        ):
            connection.sendall(b"POST /reports HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b"x")

    threads = [threading.Thread(target=drip, daemon=True) for _ in range(2 * collector.MOST_POSTS)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)  # until they have all places
        assert client.send(json.dumps(complete_report("n2")).encode(), f"{url}/reports", 15) == ""
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
        assert (
            client.send(json.dumps(complete_report("n2")).encode(), f"{url}/reports", 60, KEY) == ""
        )


def test_a_folder_that_cannot_be_used_is_named(start, tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    arguments = ["--run-id=1", f"--port={free_port()}", f"--report-dir={tmp_path}/reports"]
    program = start("-m", "gpuworker.fleet.cli", "serve", *arguments)
    assert program.wait() == 1
    assert (
        "[FATAL]" in program.output
        and "reports" in program.output
        and "Traceback" not in program.output
    )


def test_the_reports_are_handed_out_as_they_can_be_merged(served, tmp_path: Path) -> None:
    url, store = served
    store.add(source(broken_report("n2")).report)
    with urllib.request.urlopen(f"{url}/reports", timeout=10) as answer:
        (tmp_path / "reports.jsonl").write_bytes(answer.read())
    fleet = merge(read(str(tmp_path / "reports.jsonl")), Expected(2))
    assert (fleet.verdict, fleet.nodes) == (store.fleet().verdict, store.fleet().nodes)


def test_a_pod_hands_over_its_report_stays_and_hands_it_over_again(start, tmp_path: Path) -> None:
    """The two programs as their containers run them; the page is replaced, and its reports are gone
    with it.
    """
    (tmp_path / "report.json").write_text(json.dumps(complete_report("n1")))
    address = f"http://127.0.0.1:{(port := free_port())}"
    quick = "from gpuworker.fleet import cli, client; client.CONFIRM_S = 0.2; cli.main()"
    words = (
        "submit",
        tmp_path / "report.json",
        "--to",
        f"{address}/reports",
        "--stay",
        "--ready",
        tmp_path / "passed",
    )
    pod = start("-c", quick, *words)
    until((tmp_path / "passed").exists, "the pod is ready")
    for folder in ("first", "second"):
        serve = ("serve", "--port", port, "--run-id", "1", "--expect-nodes", "1", "--stay")
        page = start(
            "-m",
            "gpuworker.fleet.cli",
            *serve,
            "--interval",
            "0.1",
            "--report-dir",
            tmp_path / folder,
        )
        until(
            lambda page=page: 'summary="PASS: 1 of 1 nodes reported' in page.output,
            "the page has the report",
        )
        with urllib.request.urlopen(f"{address}/report.json", timeout=30) as answer:
            assert json.loads(answer.read())["nodes"][0]["node"] == "n1"
        page.process.send_signal(signal.SIGTERM)
        assert page.wait() == 0, page.output
    pod.process.send_signal(signal.SIGTERM)
    assert pod.wait() == 0, pod.output


def test_a_report_that_nobody_takes_is_in_the_log(tmp_path: Path, capsys) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(complete_report("n1")))
    assert submitted(path, "http://127.0.0.1:1", 0.1) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["node"] == "n1"
