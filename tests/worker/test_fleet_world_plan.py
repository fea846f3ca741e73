"""Checks across nodes in one installation: who runs them and when, and two pods that do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpuworker.fleet import report_store, world_plan
from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.report import Requested
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import (
    broken_report,
    complete_report,
    source,
    world_check,
    world_report,
)
from tests.helpers.kube import REPO
from tests.helpers.processes import free_port, until

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    passed, real = [0.0], time.monotonic
    for module in (report_store, world_plan):
        monkeypatch.setattr(module.time, "monotonic", lambda: real() + passed[0])
    return passed


def store_of(folder: Path, *reports: dict, count: int = 3) -> ReportStore:
    store = ReportStore(folder, Expected(count, run_id="1", world=True))
    for report in reports:
        add(store, report)
    return store


def add(store: ReportStore, report: dict) -> None:
    assert store.add(source(report).report, json.dumps(report))[0] == 200


def ask(store: ReportStore, *names: str) -> list[str]:
    """States of these pods, each of which asks once."""
    return [store.order(name, f"10.0.0.{name[1:]}")["state"] for name in names]


def finish(store: ReportStore, *names: str) -> None:
    ranks = {name: [index] for index, name in enumerate(names)}
    add(store, world_report(ranks, world_check("bad_nodes", ranks=len(names)), run_id="1"))


def test_pods_wait_for_the_last_report_and_then_all_run(tmp_path: Path) -> None:
    store = store_of(tmp_path, *(complete_report(name) for name in NAMES[:2]))
    assert ask(store, *NAMES[:2]) == ["wait", "wait"] and store.waiting()
    add(store, complete_report("n3"))
    assert ask(store, "n1", "n2") == ["wait", "wait"]
    last = store.order("n3", "10.0.0.3")
    first, second = (store.order(name, "10.0.0.9") for name in ("n1", "n2"))
    assert [part["node_rank"] for part in (first, second, last)] == [0, 1, 2]
    assert {part["address"] for part in (first, second, last)} == {"10.0.0.1"}
    fleet = store.fleet()
    assert fleet.verdict == "INCOMPLETE" and [found.kind for found in fleet.findings] == [
        "no-world"
    ]
    finish(store, *NAMES)
    assert store.fleet().verdict == "PASS" and not store.waiting()
    assert ask(store, *NAMES) == ["leave"] * 3


def test_a_node_that_failed_takes_no_part(tmp_path: Path) -> None:
    store = store_of(tmp_path, complete_report("n1"), complete_report("n2"), broken_report("n3"))
    assert ask(store, "n3", "n2", "n1", "n2") == ["leave", "wait", "run", "run"]
    finish(store, "n1", "n2")
    assert store.fleet().verdict == "FAIL" and not store.waiting()


def test_a_finding_of_the_world_does_not_start_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, *map(complete_report, NAMES))
    ask(store, *NAMES, *NAMES[:2])
    ranks = {name: [index] for index, name in enumerate(NAMES)}
    slow = {
        "verdict": "FAIL",
        "kind": "slow",
        "reason": "slow",
        "parts": ["node n2"],
        "numbers": {},
    }
    add(store, world_report(ranks, world_check("bad_nodes", slow, ranks=3), run_id="1"))
    assert store.fleet().verdict == "FAIL" and not store.waiting()
    assert ask(store, *NAMES) == ["leave"] * 3


def test_the_pod_of_a_repaired_node_starts_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, *(complete_report(name, pod=f"{name}-a") for name in NAMES))
    ask(store, *NAMES, *NAMES[:2])
    finish(store, *NAMES)
    add(store, complete_report("n2", pod="n2-b"))
    assert store.waiting() and ask(store, "n1", "n3", "n2") == ["wait", "wait", "run"]
    assert [found.kind for found in store.fleet().findings] == ["no-world"], (
        "the earlier report does not count"
    )
    assert not [path for path in store.files() if json.loads(path.read_text())["scope"] == "world"]


def test_without_a_report_it_is_tried_again_and_then_given_up(
    tmp_path: Path, clock: list[float]
) -> None:
    store = store_of(tmp_path, *map(complete_report, NAMES))
    for _ in range(world_plan.TRIES):
        assert ask(store, *NAMES, *NAMES[:2]) == ["wait", "wait", "run", "run", "run"]
        assert store.waiting()
    assert ask(store, *NAMES) == ["wait", "wait", "leave"] and not store.waiting()
    assert store.fleet().verdict == "INCOMPLETE"


def test_a_pod_that_has_gone_does_not_count_as_idle(tmp_path: Path, clock: list[float]) -> None:
    store = store_of(tmp_path, *map(complete_report, NAMES))
    ask(store, "n1")
    clock[0] = world_plan.IDLE_S + 1
    assert ask(store, "n2", "n3") == ["wait", "wait"]
    assert ask(store, "n1") == ["run"]


def test_two_pods_run_the_checks_and_the_page_passes(tmp_path: Path) -> None:
    """Two real pods' programs on loopback: collector, torchrun, ddp-tests, report."""
    port, requested = free_port(), Requested("cpu", 0, "quick")
    command = [sys.executable, "-m", "gpuworker.fleet.cli"]
    env = os.environ | {"PYTHONPATH": str(REPO / "worker/src"), "OMP_NUM_THREADS": "1"}
    address = f"http://127.0.0.1:{port}"

    def start(node: str, *options: object) -> subprocess.Popen:
        return subprocess.Popen([*command, *map(str, options)], env=env | {"NODE_NAME": node})

    serve = ["serve", "--run-id=1", f"--port={port}", "--expect-nodes=2", "--device=cpu", "--world"]
    started = [start("", *serve, f"--report-dir={tmp_path}/kept")]
    try:
        until(lambda: answer(f"{address}/healthz")[0] == 200, "the collector answers")
        for name in NAMES[:2]:
            report = tmp_path / f"{name}.json"
            report.write_text(json.dumps(complete_report(name, requested)))
            assert start(name, "submit", report, f"--to={address}/reports").wait(60) == 0
        assert answer(f"{address}/readyz")[0] == 503
        world = ["world", f"--to={address}", "--run-id=1", "--address=127.0.0.1", "--timeout=120"]
        pods = [
            start(name, *world, f"--node={name}", "--", "--device=cpu", "--stragglers")
            for name in NAMES[:2]
        ]
        started += pods
        assert [pod.wait(180) for pod in pods] == [0, 0]
        status, text = answer(f"{address}/readyz")
        assert status == 200, text
        fleet = json.loads(answer(f"{address}/report.json")[1])
        assert [world["nodes"] for world in fleet["worlds"]] == [["n1", "n2"]]
    finally:
        for process in started:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"[]",
        b"5",
        b"{}",
        b'{"node": "n1", "address": "n2"}',
        b'{"node": "n1"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_question_that_is_none_is_refused(tmp_path: Path, question: bytes) -> None:
    handler = object.__new__(CollectorHandler)
    handler.store = store_of(tmp_path)
    assert handler.part_of(question)[0] == 400


def answer(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
