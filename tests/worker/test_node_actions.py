"""The page marks nodes of verified pods through the API of Kubernetes, here a stand-in of it over
TLS.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import hashlib
import json
import random
import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest

from gpuworker.fleet import cli, collector, marks
from gpuworker.fleet.client import ask, send
from gpuworker.fleet.kubernetes import KubeApi, PodList
from gpuworker.fleet.marks import HOLD, Rules
from gpuworker.fleet.node_actions import UNVERIFIED, NodeActions
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.report import FAIL, WARN
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import (
    broken_report,
    complete_report,
    problem,
    source,
    with_problems,
    world_check,
)
from tests.helpers.fleet_reports import world_report as world_report_of
from tests.helpers.kube import wait_until
from tests.helpers.node_api import api as api
from tests.helpers.node_api import client, node_object
from tests.worker.test_node_marks import others, ours, state

OWN = "team/accept"
START = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)


class KilledError(BaseException):
    """The end of a collector."""


class Site:
    """A cluster whose nodes are tested by pods, and a collector that can be killed."""

    def __init__(
        self, api, folder: Path, names: list[str], rules: Rules, dry_run: bool = False
    ) -> None:
        self.api, self.folder, self.rules, self.dry_run = api, folder, rules, dry_run
        self.names, self.minute, self.reports = names, 0, {}
        api.nodes = {name: node_object(name) for name in names}
        self.before = copy.deepcopy(api.nodes)
        self.start()

    def start(self) -> None:
        """A new collector, to which the pods send their reports again. It has no disk of an earlier
        one.
        """
        shutil.rmtree(self.folder / "reports", ignore_errors=True)
        (self.folder / "reports").mkdir()
        self.store = ReportStore(self.folder / "reports", Expected(len(self.names), run_id="1"))
        self.kube = client(self.folder)
        self.actions = NodeActions(self.rules, self.dry_run, PodList("app=node", self.kube))
        for report, sender in self.reports.values():
            self.post(report, sender)

    def post(self, report: dict, sender: str) -> None:
        digest = hashlib.sha256(json.dumps(report).encode()).hexdigest()
        self.store.add(source(report).report, digest, sender)

    def test(self, name: str, make=complete_report, runs_on: str = "", sender: str = "") -> None:
        """A new pod tests a node, in place of the last one there. `runs_on`: where it runs in
        truth.
        """
        self.minute += 1
        pod, address = (
            f"accept-{self.minute:05}",
            f"10.0.{self.minute // 250}.{self.minute % 250 + 1}",
        )
        self.api.pods = [each for each in self.api.pods if each["metadata"]["node"] != name] + [
            {
                "metadata": {"name": pod, "node": name},
                "spec": {"nodeName": runs_on or name},
                "status": {"phase": "Running", "podIPs": [{"ip": address}]},
            }
        ]
        started = (START + datetime.timedelta(minutes=self.minute)).isoformat()
        self.reports[name] = {**make(name), "pod": pod, "started": started}, sender or address
        self.post(*self.reports[name])

    def look(self, rounds: int = 2) -> dict[str, str]:
        for _ in range(rounds):
            fleet = self.store.fleet()
            self.actions.act(self.store)
        fleet = self.store.fleet()
        return fleet.marks

    def marked(self) -> set[str]:
        return {name for name, node in self.api.nodes.items() if ours(node)}

    def reboot(self, name: str) -> None:
        info = self.api.nodes[name]["status"]["nodeInfo"]
        info["bootID"] = self.before[name]["status"]["nodeInfo"]["bootID"] = f"{info['bootID']}+"


@pytest.fixture
def site(api, tmp_path: Path):
    def make(
        *names: str, action: str = "taint", dry_run: bool = False, hour_s: float = 3600.0
    ) -> Site:
        return Site(api, tmp_path, list(names), Rules(action, OWN, hour_s), dry_run)

    return make


def slow_report(node: str) -> dict:
    slow = problem(FAIL, "slow", "cuda:1: half as fast as the others", "cuda:1")
    return with_problems(complete_report(node), "compute", slow)


def warned_report(node: str) -> dict:
    return with_problems(
        complete_report(node), "compute", problem(WARN, "slow", "cuda:1: a little slower", "cuda:1")
    )


@pytest.mark.parametrize("action", marks.ACTIONS)
def test_a_node_that_failed_is_marked_and_shown_and_no_other(site, action: str) -> None:
    place = site("n1", "n2", "n3", action=action)
    for name, make in (("n1", complete_report), ("n2", broken_report), ("n3", warned_report)):
        place.test(name, make)
    assert place.look() == {"n2": action}
    assert place.marked() == (set() if action == "record" else {"n2"})
    assert {name: state(node).action for name, node in place.api.nodes.items()} == {
        "n1": "",
        "n2": action,
        "n3": "",
    }
    assert {name: others(node) for name, node in place.api.nodes.items()} == {
        name: others(node) for name, node in place.before.items()
    }
    assert place.api.nodes["n3"] == place.before["n3"], "a warning says nothing"


def test_a_dry_run_changes_nothing_and_shows_the_mark_and_prints_the_patch_once(
    site, capsys
) -> None:
    place = site("n1", "n2", dry_run=True)
    place.test("n1", broken_report)
    place.test("n2")
    assert place.look(4) == {"n1": "would taint"}
    assert place.api.nodes == place.before and place.api.patched == []
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "patch=" in line]
    assert "node=n1" in line and "NoSchedule" in line


LIES = {
    "it runs elsewhere": {"runs_on": "n2"},
    "it came from another pod": {"sender": "10.9.9.9"},
    "it came from nowhere": {"sender": "unknown"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_pod_that_lies_about_its_node_marks_none(site, lie: str) -> None:
    place = site("n1", "n2")
    place.test("n1", broken_report, **LIES[lie])
    place.test("n2")
    assert place.look() == {"n1": UNVERIFIED} and not place.marked()
    assert place.api.nodes["n1"] == place.before["n1"]
    place.test("n1", broken_report)
    assert place.look() == {"n1": "taint"}, "another pod says the truth"


def test_what_another_pod_says_in_the_name_of_a_verified_one_does_not_count(site) -> None:
    place = site("n1", "n2")
    place.test("n1")
    place.test("n2")
    assert place.look() == {}
    report, _ = place.reports["n1"]
    wrong = {**broken_report("n1"), "pod": report["pod"], "started": "2026-01-06T00:00:00+00:00"}
    place.post(wrong, "10.9.9.9")
    assert place.store.fleet().verdict == FAIL
    assert place.look() == {"n1": UNVERIFIED} and not place.marked()


def test_what_a_report_of_several_nodes_says_about_another_one_does_not_count(site) -> None:
    place = site("n1", "n2")
    place.test("n1")
    place.test("n2")
    blamed = world_check("bad_nodes", problem(FAIL, "bad-node", "n2 is slow", "node n2"))
    place.post(world_report_of({"n1": [0, 1], "n2": [2, 3]}, blamed, run_id="1"), "10.0.0.2")
    assert place.store.fleet().verdict == FAIL
    assert place.look() == {} and not place.marked()


def test_a_report_with_a_level_that_does_not_exist_stops_nothing(site) -> None:
    place = site(*(f"n{index}" for index in range(3)))
    place.test(
        "n0",
        lambda name: {
            **broken_report(name),
            "requested": {**complete_report(name)["requested"], "level": "x"},
        },
    )
    place.test("n1", broken_report)
    place.test("n2")
    assert place.look()["n1"] == "taint" and place.marked() == {"n1"}


def test_a_hold_is_shown_and_ends_when_it_is_removed(site) -> None:
    place = site("n1")
    place.api.nodes["n1"]["metadata"]["annotations"][HOLD] = "true"
    place.test("n1", broken_report)
    assert place.look() == {"n1": "held"} and not place.marked()
    del place.api.nodes["n1"]["metadata"]["annotations"][HOLD]
    assert place.look() == {"n1": "taint"} and place.marked() == {"n1"}


def test_nothing_is_asked_when_nothing_is_new(site) -> None:
    place = site("n1", "n2")
    place.test("n1", broken_report)
    place.test("n2")
    place.look(3)
    asked = len(place.api.queries)
    place.look(5)
    assert len(place.api.queries) == asked


def test_without_the_right_the_page_says_so_and_goes_on(site) -> None:
    place = site("n1")
    place.test("n1", broken_report)
    (place.folder / "account" / "token").write_text("wrong")
    place.look()
    assert (
        any("403" in note for note in place.store.fleet().notes)
        and place.store.fleet().verdict == FAIL
    )
    (place.folder / "account" / "token").write_text("secret")
    assert place.look() == {"n1": "taint"}


def test_a_node_that_changes_meanwhile_is_marked_in_the_next_round(site, monkeypatch) -> None:
    place = site("n1")
    place.test("n1", broken_report)
    ask = KubeApi.ask

    def late(self: KubeApi, path: str, patch: dict | None = None) -> dict:
        if patch:
            monkeypatch.setattr(KubeApi, "ask", ask)
            place.api.nodes["n1"]["metadata"]["resourceVersion"] = "9"
        return ask(self, path, patch)

    monkeypatch.setattr(KubeApi, "ask", late)
    assert place.look(1) == {"n1": "failed"} and not place.marked()
    assert place.look(1) == {"n1": "taint"}


@pytest.mark.parametrize(("action", "rounds"), [("taint", 50), ("condition", 5)])
def test_rounds_of_fault_mark_repair_pass_and_release_with_a_collector_that_is_killed(
    site, monkeypatch, action: str, rounds: int
) -> None:
    """At random before or after a patch or a list; a new collector without a disk goes on."""
    chance, ask, deaths = random.Random(action), KubeApi.ask, []

    def dying(self: KubeApi, path: str, patch: dict | None = None) -> dict:
        when = chance.choice(["before", "after", *["never"] * 18])
        if when == "before":
            raise KilledError
        answer = ask(self, path, patch)
        if when == "after":
            raise KilledError
        return answer

    monkeypatch.setattr(KubeApi, "ask", dying)
    place = site("n1", "n2", "n3", action=action, hour_s=1e-3)

    def look() -> None:
        quiet = 0
        while quiet < 2:
            try:
                place.look(1)
                quiet += 1
            except KilledError:
                deaths.append(1)
                place.start()
                quiet = 0

    for name in place.names:
        place.test(name)
    look()
    for turn in range(rounds):
        victim = chance.choice(place.names)
        fault = chance.choice([broken_report, slow_report])
        place.test(victim, fault)
        look()
        if fault is slow_report:
            assert not place.marked(), f"round {turn}: one strike"
            place.test(victim, fault)
            look()
        assert place.marked() == {victim}, f"round {turn}"
        place.reboot(victim)
        place.test(victim, chance.choice([complete_report, complete_report, warned_report]))
        look()
        if place.marked():
            place.test(victim)
            look()
        assert not place.marked(), f"round {turn}"
        for name, node in place.api.nodes.items():
            assert others(node) == others(place.before[name]), f"round {turn}"
    assert len(deaths) >= rounds / 2


def test_the_collector_marks_by_its_options_the_node_whose_pod_posted(
    api, tmp_path: Path, monkeypatch
) -> None:
    api.nodes = {name: node_object(name) for name in ("n1", "n2")}
    posted = broken_report("n1") | {"pod": "accept-1"}
    api.pods = [
        {
            "metadata": {"name": "accept-1"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "podIPs": [{"ip": "127.0.0.1"}]},
        }
    ]
    monkeypatch.setattr(collector, "KubeApi", lambda: client(tmp_path))
    monkeypatch.setattr(collector.signal, "signal", lambda *_: None)  # only the main thread may
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [
        "serve", f"--port={port}", "--run-id=1", "--expect-nodes=2", "--interval=0.1", f"--report-dir={tmp_path}/kept",
        "--list-pods=app=node", f"--name={OWN}", "--node-actions=label",
    ]  # fmt: skip

    def serve() -> None:
        with contextlib.suppress(SystemExit):
            cli.main(options)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        assert send(json.dumps(posted).encode(), f"http://127.0.0.1:{port}/reports", 30) == ""
        wait_until(lambda: ours(api.nodes["n1"]) == {"label"}, "the node is marked", 30)
        url = f"http://127.0.0.1:{port}/report.json"
        wait_until(
            lambda: json.loads(ask(url)[1])["marks"] == {"n1": "label"}, "the page shows it", 30
        )
        assert api.nodes["n2"] == node_object("n2")
    finally:
        monkeypatch.setattr(collector, "look", lambda *_: sys.exit())
        thread.join(10)


def test_marks_need_pods_and_a_name() -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["serve", "--run-id=1", "--node-actions=taint"])
    assert error.value.code == 2


@pytest.mark.parametrize("patrol", [True, False])
def test_of_a_patrol_the_last_test_of_a_node_counts(tmp_path: Path, patrol: bool) -> None:
    """Of a Job two pods on one node are a mistake, and the worst counts."""
    store = ReportStore(tmp_path, Expected(1, run_id="1"), patrol=patrol)
    for hour, (job, make) in enumerate(
        [("accept-100-0-aaaaa", broken_report), ("accept-160-3-bbbbb", complete_report)]
    ):
        report = make("n1") | {
            "pod": job,
            "started": (START + datetime.timedelta(hours=hour)).isoformat(),
        }
        status, _ = store.add(source(report).report)
    assert (store.fleet().verdict, status) == (("PASS", 200) if patrol else (FAIL, 422))
