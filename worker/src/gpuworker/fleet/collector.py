"""Collector: takes the reports of all nodes of one run and serves them as one page."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import ipaddress
import json
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

from gpuworker.fleet import expected
from gpuworker.fleet.formats.page import POLICY, SERVED, page
from gpuworker.fleet.formats.prometheus import CONTENT_TYPE, prometheus
from gpuworker.fleet.http_handler import (
    DIGEST_HEADER,
    NONCE_HEADER,
    POSTED,
    SIGNATURE_HEADER,
    WAITING,
    Answer,
    ReportHandler,
    ReportServer,
)
from gpuworker.fleet.kubernetes import KubeApi, PodList
from gpuworker.fleet.marks import ACTIONS, HOUR_S, Rules
from gpuworker.fleet.node_actions import NodeActions
from gpuworker.fleet.report_sources import MOST_REPORT_BYTES, from_text
from gpuworker.fleet.report_store import MOST_STORED_BYTES, ReportStore
from gpuworker.judgement.fleet_report import Fleet, json_text, summary
from gpuworker.judgement.report import PASS, WARN
from gpuworker.runtime.contract import REPORT_PORT, ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import NonceIssuer, load_key, matches
from gpuworker.runtime.option_types import port, positive
from gpuworker.runtime.plain_files import read_plain

MOST_POSTS = 16  # that are received at the same time
MOST_DIGITS = 20  # of the length of a message
NOT_SIGNED = "the report has no valid signature: its sender has not the key of this release"
RESOLVE_S = 60.0  # until the name of a new Service is known
POST_S = 30.0  # that a report of a few megabytes may take

HTML = "text/html; charset=utf-8"
# asked for again and again
FORMATS: dict[str, tuple[Callable[[Fleet], str], str]] = {
    "/report.json": (functools.lru_cache(maxsize=1)(json_text), "application/json"),
    "/page.html": (page, HTML),
    "/metrics": (prometheus, CONTENT_TYPE),
}
REPORTS, WORLD = "/reports", "/world"
# one at a time: a text of thousands of GPUs takes seconds and megabytes
RENDERING = threading.Lock()


class CollectorHandler(ReportHandler):
    policy = POLICY
    store: ReportStore  # set by run
    key = b""  # with which reports must be signed
    posts = threading.BoundedSemaphore(MOST_POSTS)
    # one at a time: a parsed report takes some ten times its size of memory
    reading = threading.Lock()
    nonces = NonceIssuer()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == REPORTS and self.command == "GET":
            self.send_reports(parse_qs(query).get("node", []))
        else:
            super().do_GET()

    def send_reports(self, nodes: list[str]) -> None:
        """All, or those of `nodes`, file by file: thousands of nodes have hundreds of megabytes."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for path in map(self.store.path, nodes) if nodes else self.store.files():
            with contextlib.suppress(OSError):
                self.wfile.write(read_plain(path, MOST_STORED_BYTES))

    def get(self, path: str) -> Answer | None:
        if path in FORMATS:
            make, content_type = FORMATS[path]
            with RENDERING:
                return 200, make(self.store.fleet()), content_type
        if path == "/":
            return 200, SERVED, HTML
        if path == "/nonce":
            return 200, self.nonces.issue()
        if path == "/readyz":
            fleet, waiting = self.store.fleet(), self.store.waiting()
            status = 200 if fleet.verdict in (PASS, WARN) and not waiting else 503
            return status, f"{summary(fleet)}\n{waiting * WAITING}\n"
        if path.startswith(f"{REPORTS}/") and self.store.confirm(path.removeprefix(f"{REPORTS}/")):
            return 200, "it is here\n"
        return None

    def do_POST(self) -> None:
        self.respond(*self.post())

    def post(self) -> tuple[int, str]:
        if self.path != REPORTS and not (self.path == WORLD and self.store.world):
            return 404, f"not found; the collector accepts POST {REPORTS}\n"
        length = self.headers.get("Content-Length", "")
        if not length:
            return 411, "Content-Length is required\n"
        # Python refuses to read thousands of digits.
        if not length.isdecimal() or len(length) > MOST_DIGITS or int(length) > MOST_REPORT_BYTES:
            return 413, f"Content-Length must be at most {MOST_REPORT_BYTES} bytes\n"
        digest = self.headers.get(DIGEST_HEADER, "")
        # before the body is received, so that others hold no place
        if self.key and not self.is_signed(digest):
            # else the sender may get a reset instead of the answer
            for _ in range(0, int(length), 65536):
                self.rfile.read1(65536)
            return 401, f"{NOT_SIGNED}\n"
        if not self.posts.acquire(timeout=self.timeout):
            return 503, "the collector is busy; try again\n"
        try:
            data = self.body(int(length), POST_S)
            found = hashlib.sha256(data).hexdigest()
            if self.key and found != digest:
                return 401, f"{NOT_SIGNED}\n"
            if self.path == WORLD:
                return self.part_of(data)
            with self.reading:
                (source, *_) = from_text("the request", data)
                if source.report is None:
                    return 400, f"{source.error}\n"
                sender = self.client_address[0].removeprefix("::ffff:")  # of IPv4
                status, answer = self.store.add(source.report, found, sender)
        finally:
            self.posts.release()
        return status, f"{answer}\n"

    def part_of(self, question: bytes) -> tuple[int, str]:
        try:
            asked = json.loads(question)
            node, address = str(asked["node"]), str(ipaddress.ip_address(asked["address"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return 400, f'{{"node": …, "address": …}} is expected: {error}\n'
        return 200, json.dumps(self.store.order(node, address))

    def is_signed(self, digest: str) -> bool:
        nonce, signature = (self.headers.get(name, "") for name in (NONCE_HEADER, SIGNATURE_HEADER))
        if not matches(signature, self.key, POSTED, nonce, digest):
            return False
        with self.reading:
            return self.nonces.accept(nonce)


def serve(args: argparse.Namespace) -> int:
    """Collect the reports of all nodes of one run and serve them as one page.

    /                    the page; it follows new reports     /report.json    the result as JSON
    /page.html           the page as a file, with its data    /metrics        Prometheus text
    /reports             the reports themselves, one per line; ?node=NAME: of one node
    /reports/SHA256      200 if it is here: a pod that stays asks, and shows that it is there
    /readyz              200 if the whole fleet passed (PASS or WARN), else 503 with the reason
    /healthz             200 while the collector runs, whatever the verdict
    POST /reports        takes the report of a pod; with a key, it is signed for a /nonce
    POST /world          gives an idle pod its part of the checks across nodes
    """
    if args.node_actions and not (args.list_pods and args.name):
        args.error("--node-actions needs --list-pods and --name")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    key = load_key()
    try:
        if args.service:
            args.report_dir /= address_of(args.service)
        wanted = dataclasses.replace(expected.from_args(args), world=args.world)
        store = ReportStore(args.report_dir, wanted, args.stay, args.name, args.patrol)
    except OSError as error:
        why = f"the folder of the reports cannot be used: {error}"
        log(Tag.FATAL.value, exit_code=int(ExitCode.FAILED), why=why)
        return ExitCode.FAILED
    with ReportServer(args.port, CollectorHandler) as server:
        CollectorHandler.store, CollectorHandler.key = store, key
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log(Tag.FLEET.value, port=server.server_port, run=args.run_id)
        logged, pods = "", PodList(args.list_pods, KubeApi()) if args.list_pods else None
        rules = Rules(args.node_actions, args.name, args.hour, args.patrol)
        actions = NodeActions(rules, args.dry_run, pods) if args.node_actions else None
        while True:
            fleet = look(store, pods)
            if actions:
                actions.act(store)
            line = summary(fleet)
            if line != logged:
                log(Tag.FLEET.value, verdict=fleet.verdict, summary=line)
            logged = line
            time.sleep(args.interval)


def address_of(service: str) -> str:
    """The address of a Service. Each installation has a Service of its own, with another address:
    reports of an earlier installation on the same claim do not count.
    """
    end = time.monotonic() + RESOLVE_S
    while True:
        try:
            return sorted(found[4][0] for found in socket.getaddrinfo(service, None))[0]
        except socket.gaierror:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def look(store: ReportStore, pods: PodList | None) -> Fleet:
    """The result, with pods that are gone and, if they may be listed, those that have no report."""
    unreported = None
    if pods and store.waiting():
        pods.refresh()
        nodes = {node.node: node.pod for node in store.fleet().nodes}
        unreported = pods.without_report(nodes.values(), nodes)
    store.watch(unreported)
    return store.fleet()


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    kept = Path(tempfile.gettempdir()) / "fleet"
    add("--port", type=port, default=REPORT_PORT, help=f"port to serve on (default: {REPORT_PORT})")
    add("--run-id", required=True, metavar="ID", help="ignore the reports of other runs")
    add(
        "--interval",
        type=positive,
        default=2,
        metavar="S",
        help="seconds between rounds (default: 2)",
    )
    add(
        "--list-pods",
        metavar="SELECTOR",
        help="labels of the pods to list, for nodes without a report",
    )
    add(
        "--node-actions",
        choices=ACTIONS,
        help="mark nodes that failed in Kubernetes; needs --list-pods and --name",
    )
    add("--dry-run", action="store_true", help="say what would be marked, and mark nothing")
    add(
        "--hour",
        type=positive,
        default=HOUR_S,
        metavar="S",
        help="for which marks are limited, and between two passes (default: 3600)",
    )
    add("--patrol", action="store_true", help="nodes are tested again and again: the last counts")
    add("--stay", action="store_true", help="pods stay after their test: name those that are gone")
    add("--world", action="store_true", help="let the pods run the checks across nodes, too")
    add(
        "--report-dir", type=Path, default=kept, help=f"folder to keep reports in (default: {kept})"
    )
    add("--service", metavar="NAME", help="keep them in a folder by the address of this Service")
    add(
        "--name",
        default="",
        metavar="NAMESPACE/NAME",
        help="namespace and name of the installation",
    )
    expected.add_options(parser)
