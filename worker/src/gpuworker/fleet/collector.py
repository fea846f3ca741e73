"""accept-report serve: collect the reports of all nodes of one run and serve them as one page.

/                    the page; it follows new reports     /report.json    the result as JSON
/node?name=NODE      all about one node                   /suspects.csv   one row per suspect
/check?name=CHECK    plots of a check                     /junit.xml      as JUnit XML
/certificate         to print and sign                    /metrics        Prometheus text
/readyz              200 if the whole fleet passed (PASS or WARN), else 503 with the reason
/healthz             200 while the collector runs, whatever the verdict
POST /reports, with --accept-posts: the report of a pod that ends after its test
/nonce               with a key, the nonce for the signature of such a report

The collector requests /report.json from the pods behind --service. That is a headless Service which also lists pods
that are not ready. A pod that returned its report is queried again a minute later. The report of a pod that no longer
exists is kept.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from gpuworker.accept.report import PASS, WARN
from gpuworker.fleet.await_verdict import WAITING
from gpuworker.fleet.expected import add_options, from_args
from gpuworker.fleet.fleet_report import Fleet, json_text, summary
from gpuworker.fleet.formats.certificate import certificate
from gpuworker.fleet.formats.html import POLICY, check_page, node_page, page
from gpuworker.fleet.formats.junit import junit
from gpuworker.fleet.formats.prometheus import CONTENT_TYPE, prometheus
from gpuworker.fleet.formats.suspects_csv import suspects_csv
from gpuworker.fleet.http_handler import (
    DIGEST_HEADER,
    NONCE_HEADER,
    POSTED,
    SIGNATURE_HEADER,
    TEXT,
    ReportHandler,
    ReportServer,
    at_most,
)
from gpuworker.fleet.pod_list import PodList
from gpuworker.fleet.poller import NOT_SIGNED, Poller
from gpuworker.fleet.report_sources import MOST_REPORT_BYTES, from_text
from gpuworker.fleet.report_store import SUBMITTED, ReportStore
from gpuworker.runtime.contract import REPORT_PORT, ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError, NonceIssuer, load_key, matches
from gpuworker.runtime.option_types import port, positive

MOST_POSTS = 16  # that are received at the same time
MOST_DIGITS = 20  # of the length of a message
POST_S = 30.0  # that a report of a few megabytes may take

HTML = "text/html; charset=utf-8"
FORMATS: dict[str, tuple[Callable[[Fleet], str], str]] = {
    "/": (functools.partial(page, served=True), HTML),
    "/report.json": (json_text, "application/json"),
    "/suspects.csv": (suspects_csv, "text/csv; charset=utf-8"),
    "/junit.xml": (junit, "application/xml"),
    "/metrics": (prometheus, CONTENT_TYPE),
    "/certificate": (certificate, HTML),
}
DETAILS = {"/node": node_page, "/check": check_page}  # of ?name=
KEPT = ("/", "/metrics")  # texts that are asked for again and again
READY, NONCE = "/readyz", "/nonce"


class CollectorHandler(ReportHandler):
    paths = (*FORMATS, *DETAILS, READY, NONCE)
    policy = POLICY
    store: ReportStore  # set by run
    accept_posts: bool
    posts = threading.BoundedSemaphore(MOST_POSTS)
    reading = threading.Lock()  # one at a time: a parsed report takes some ten times its size of memory
    nonces = NonceIssuer()

    def get(self, path: str) -> tuple[int, str, str]:
        if path == NONCE:
            return 200, self.nonces.issue(), TEXT
        if path in DETAILS:
            fleet, name = self.store.fleet(), self.query.get("name", "")
            nodes = {node.node for node in fleet.nodes}
            checks = {check for each in (*fleet.nodes, *fleet.worlds) for check in each.checks}
            with RENDERING:
                return 200 if name in (nodes if path == "/node" else checks) else 404, DETAILS[path](fleet, name), HTML
        if path != READY:
            return 200, rendered(self.store.fleet(), path), FORMATS[path][1]
        fleet, waiting = self.store.fleet(), self.store.waiting()
        status = 200 if fleet.verdict in (PASS, WARN) and not waiting else 503
        return status, f"{summary(fleet)}\n{waiting * WAITING}\n", TEXT

    def do_POST(self) -> None:
        self.respond(*self.post(), TEXT)

    def post(self) -> tuple[int, str]:
        if self.path != "/reports" or not self.accept_posts:
            return 404, "not found; the collector accepts POST /reports with --accept-posts only\n"
        length = self.headers.get("Content-Length", "")
        if not length:
            return 411, "Content-Length is required\n"
        # Python refuses to read thousands of digits.
        if not length.isdecimal() or len(length) > MOST_DIGITS or int(length) > MOST_REPORT_BYTES:
            return 413, f"Content-Length must be at most {MOST_REPORT_BYTES} bytes\n"
        digest = self.headers.get(DIGEST_HEADER, "")
        if self.key and not self.is_signed(digest):  # before the body is received, so that others hold no place
            for _ in range(0, int(length), 65536):  # else the sender may get a reset instead of the answer
                self.rfile.read1(65536)
            return 401, f"{NOT_SIGNED}\n"
        if not self.posts.acquire(timeout=self.timeout):
            return 503, "the collector is busy; try again\n"
        try:
            with at_most(POST_S, self.connection):
                data = self.rfile.read(int(length))
            if self.key and hashlib.sha256(data).hexdigest() != digest:
                return 401, f"{NOT_SIGNED}\n"
            with self.reading:
                (source, *_) = from_text("the request", data)
                if source.report is None:
                    return 400, f"{source.error}\n"
                status, answer = self.store.add(source.report, SUBMITTED)
        finally:
            self.posts.release()
        if status in (HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY):
            self.store.submitters.add(self.client)
        return status, f"{answer}\n"

    def is_signed(self, digest: str) -> bool:
        nonce, signature = (self.headers.get(name, "") for name in (NONCE_HEADER, SIGNATURE_HEADER))
        if not matches(signature, self.key, POSTED, nonce, digest):
            return False
        with self.reading:
            return self.nonces.accept(nonce)


RENDERED: dict[str, tuple[Fleet, str]] = {}  # path -> a result and its text
RENDERING = threading.Lock()  # one at a time: a text of thousands of GPUs takes seconds and megabytes


def rendered(fleet: Fleet, path: str) -> str:
    """The result in the format of a path."""
    with RENDERING:
        known = RENDERED.get(path)
        if known is None or known[0] is not fleet:
            known = fleet, FORMATS[path][0](fleet)
        if path in KEPT:
            RENDERED[path] = known
        return known[1]


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        key = load_key()
    except KeyFileError as error:
        log(Tag.FATAL.value, exit_code=int(ExitCode.USAGE), why=error)
        return ExitCode.USAGE
    try:
        args.report_dir.mkdir(parents=True, exist_ok=True)
        store = ReportStore(args.report_dir, from_args(args), keep_gone=args.accept_posts)
    except OSError as error:
        log(Tag.FATAL.value, exit_code=int(ExitCode.FAILED), why=f"the folder of the reports cannot be used: {error}")
        return ExitCode.FAILED
    with ReportServer(args.port, CollectorHandler) as server:
        CollectorHandler.store, CollectorHandler.accept_posts, CollectorHandler.key = store, args.accept_posts, key
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log(Tag.FLEET.value, port=server.server_port, run=args.run_id)
        logged, poller = (
            "",
            Poller(store, args.service, args.service_port, key, PodList(args.list_pods) if args.list_pods else None),
        )
        while True:
            poller.poll()
            fleet = store.fleet()
            line = summary(fleet)
            if line != logged:
                log(Tag.FLEET.value, verdict=fleet.verdict, summary=line)
            logged = line
            time.sleep(args.interval)


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "serve", help="collect the reports of running pods and serve the page", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kept = Path(tempfile.gettempdir()) / "fleet"
    parser.add_argument("--service", required=True, metavar="HOST", help="name that resolves to all pods with a report")
    parser.add_argument("--service-port", type=port, default=REPORT_PORT, metavar="PORT", help="port of these pods")
    parser.add_argument("--port", type=port, default=REPORT_PORT, help=f"port to serve on (default: {REPORT_PORT})")
    parser.add_argument("--run-id", required=True, metavar="ID", help="ignore the reports of other runs")
    parser.add_argument("--interval", type=positive, default=2, metavar="S", help="seconds between rounds (default: 2)")
    parser.add_argument(
        "--list-pods", metavar="SELECTOR", help="labels of the pods to list, for nodes without a report"
    )
    parser.add_argument("--accept-posts", action="store_true", help="accept reports at POST /reports")
    parser.add_argument("--report-dir", type=Path, default=kept, help=f"folder to keep reports in (default: {kept})")
    add_options(parser)
    parser.set_defaults(run=run)
