"""Actions on nodes: reads pods and nodes of Kubernetes, and applies what marks.py decides.

Only a node counts whose name Kubernetes itself says: the pod that a report names runs there, and
the report came from the address of this pod.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import defaultdict
from collections.abc import Mapping

from gpuworker.fleet.kubernetes import PERIOD_S, PROBLEMS, PodList
from gpuworker.fleet.marks import ACTIONS, DEPTHS, Result, Rules, Step, decide
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.kinds import KINDS, Danger
from gpuworker.judgement.report import FAIL
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

UNVERIFIED, FAILED, WOULD = "unverified", "failed", "would"
EVIDENCE = ("node", "fingerprint", "fleet")  # what a report of another node says does not count
NODES = "/api/v1/nodes"


class NodeActions:
    """Marks nodes, or in a dry run says what it would mark."""

    def __init__(self, rules: Rules, dry_run: bool, pods: PodList) -> None:
        self.rules, self.dry_run, self.pods = rules, dry_run, pods
        self.verified: set[tuple] = set()  # node, pod and address; pods of a Job are deleted
        self.done: Fleet | None = None  # nothing is left to do about it
        self.at = -float(PERIOD_S)

    def act(self, store: ReportStore) -> None:
        """One round, if there may be something to do."""
        with store.lock:  # the senders of these very reports
            fleet, senders = store.result, dict(store.senders)
        if fleet is None or fleet is self.done or time.monotonic() - self.at < PERIOD_S:
            return
        self.at = time.monotonic()
        self.pods.refresh()
        tests = self.tests_of(fleet, senders)
        try:
            nodes = self.pods.api.items(NODES)
            steps, marks, alerts = decide(nodes, tests, self.rules, time.time())
        except PROBLEMS as error:
            store.show({}, [f"nodes cannot be listed: {type(error).__name__}: {error}"])
            return
        for node in fleet.nodes:
            if node.verdict == FAIL and node.node not in tests:
                marks[node.node] = UNVERIFIED
        for step in steps:
            marks[step.node] = mark = self.take(step)
            if mark != store.shown[0].get(step.node, ""):
                log(Tag.FLEET.value, node=step.node, mark=mark, patch=json.dumps(step.patch))
        marks = {node: mark for node, mark in marks.items() if mark}
        store.show(marks, alerts)
        if all(mark in ACTIONS or mark.startswith(WOULD) for mark in marks.values()):
            self.done = fleet

    def tests_of(self, fleet: Fleet, senders: Mapping[str, str]) -> dict[str, Result]:
        """The last test of each node of a verified pod, with the worst that is proven about its
        hardware.
        """
        pods, faults = {pod.name: pod for pod in self.pods.listed}, defaultdict(list)
        for finding in fleet.findings:
            danger = KINDS[finding.kind].danger
            proven = finding.verdict == FAIL and finding.found_by in EVIDENCE
            if proven and danger <= Danger.SLOW:
                faults[finding.node].append((danger, finding.kind))
        found = {}
        for node in fleet.nodes:
            pod, sender = pods.get(node.pod), senders.get(node.node)
            if pod and pod.node == node.node and sender in pod.addresses:
                self.verified.add((node.node, node.pod, sender))
            if (node.node, node.pod, sender) in self.verified and node.level in DEPTHS:
                at = datetime.datetime.fromisoformat(node.started).timestamp()
                gpus = " ".join(sorted(gpu.uuid for gpu in node.gpus))
                _, kind = min(faults[node.node], default=(None, ""))
                found[node.node] = Result(at, node.verdict, node.level, gpus, kind)
        return found

    def take(self, step: Step) -> str:
        """Apply a patch; returns the mark that the node has then."""
        if self.dry_run:
            return f"{WOULD} {step.action or 'release'}" if step.turns else step.action
        part = "/status" if "status" in step.patch else ""
        try:
            self.pods.api.ask(f"{NODES}/{step.node}{part}", step.patch)
        except PROBLEMS as error:
            log(Tag.FLEET.value, node=step.node, mark=FAILED, why=error)
            return FAILED
        return step.action
