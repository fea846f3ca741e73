"""accept-report serve: collect the reports of all nodes of one run and show them as one page.

/          the page                /report.json  the result as JSON    /junit.xml  as JUnit
/metrics   for Prometheus          /healthz      200: the collector lives, whatever the verdict
POST /reports, with --accept-posts: the report of a pod that ends after its test

Every --interval seconds it asks the pods behind --peers, a headless Service that also names pods that are not ready,
for /report.json: at most ASKERS at once, and a pod that has given its report only every REFRESH_S. The report of a pod
that is gone stays.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpuworker.fleet.fleet_report import Fleet, coverage_text
from gpuworker.fleet.formats.html import page
from gpuworker.fleet.formats.junit import junit
from gpuworker.fleet.formats.prometheus import CONTENT_TYPE, prometheus
from gpuworker.fleet.report_sources import from_text
from gpuworker.fleet.report_store import POSTED, Store
from gpuworker.runtime.log import log

ASKERS = 16
REFRESH_S = 60
PATIENCE_S = 5  # of one question
LARGEST = 16 << 20  # bytes of one report

FORMS = {
    "/": (page, "text/html; charset=utf-8"),
    "/report.json": (lambda fleet: json.dumps(fleet.to_dict(), allow_nan=False) + "\n", "application/json"),
    "/junit.xml": (junit, "application/xml"),
    "/metrics": (prometheus, CONTENT_TYPE),
}


class Poller:
    """Asks the pods of a Service for their reports, round by round."""

    def __init__(self, store: Store, host: str, port: int) -> None:
        self.store, self.host, self.port = store, host, port
        self.given: dict[str, float] = {}  # address -> when it gave its report
        self.present: set[str] = set()
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def round(self) -> None:
        self.present = self.addresses()
        self.given = {address: when for address, when in self.given.items() if address in self.present}
        # A pod that has ended keeps its name, and has handed in its report before.
        asked = sorted(self.present - self.store.posters)
        due = [a for a in asked if time.monotonic() - self.given.get(a, -REFRESH_S) >= REFRESH_S]
        testing, broken = {}, {}
        with concurrent.futures.ThreadPoolExecutor(ASKERS) as pool:
            for address, (report, why) in zip(due, pool.map(self.ask, due), strict=True):
                if report is None:
                    (testing if why.startswith("no report") else broken)[address] = why
                    self.given.pop(address, None)
                elif self.store.add(report, address):
                    self.given[address] = time.monotonic()
                else:
                    testing[address] = f"has run {report['run_id']}"
        self.store.update(self.present, testing, broken)

    def addresses(self) -> set[str]:
        """Of all pods. A name that is not there is a Service without pods; a DNS that does not answer says nothing."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return set() if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else self.present
        return {address[0] for *_, address in found}

    def ask(self, address: str) -> tuple[dict | None, str]:
        """The report, or why there is none."""
        name = f"[{address}]" if ":" in address else address
        try:
            with self.direct.open(f"http://{name}:{self.port}/report.json", timeout=PATIENCE_S) as answer:
                data = answer.read(LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:  # HTTPError is an OSError
            return None, f"no report yet: {error}"
        if len(data) > LARGEST:
            return None, f"a report of more than {LARGEST} bytes"
        (source, *_) = from_text(address, data)
        return source.report, source.error


class Handler(BaseHTTPRequestHandler):
    store: Store  # set by serve
    posts: bool
    timeout = 30  # seconds that a silent client may hold a thread

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            return self.answer(200, "alive\n", "text/plain")
        if path not in FORMS:
            return self.answer(404, f"there are {', '.join(FORMS)} and /healthz\n", "text/plain")
        self.answer(200, rendered(self.store.fleet(), path), FORMS[path][1])

    def do_POST(self) -> None:
        if self.path != "/reports" or not self.posts:
            return self.answer(404, "reports are not posted here\n", "text/plain")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            return self.answer(413, f"a report has a Content-Length of at most {LARGEST} bytes\n", "text/plain")
        (source, *_) = from_text("what was posted", self.rfile.read(int(length)))
        if source.report is None:
            return self.answer(400, f"{source.error}\n", "text/plain")
        if not self.store.add(source.report, POSTED):
            return self.answer(409, f"this is run {self.store.run_id}\n", "text/plain")
        self.store.posters.add(self.client_address[0])
        self.answer(200, "taken\n", "text/plain")

    def answer(self, status: int, text: str, content_type: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        # The page shows what nodes say: whatever that is, no script of it runs and nothing is fetched.
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Say nothing: the kubelet probes every few seconds."""


RENDERED: dict[str, tuple[Fleet, str]] = {}  # path -> the result and what was made of it


def rendered(fleet: Fleet, path: str) -> str:
    """The form of a result, made once: thousands of GPUs take seconds, and a browser asks again and again."""
    known = RENDERED.get(path)
    if known is None or known[0] is not fleet:
        known = RENDERED[path] = fleet, FORMS[path][0](fleet)
    return known[1]


def main(arguments: list[str]) -> int:
    args = parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    args.folder.mkdir(parents=True, exist_ok=True)
    store = Store(args.folder, args.run_id, args.expect_nodes)
    with ThreadingHTTPServer(("", args.port), Handler) as server:
        server.daemon_threads = True
        Handler.store, Handler.posts = store, args.accept_posts
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log("RESULT", serving=f"port {server.server_port}", run=args.run_id)
        said, poller = "", Poller(store, args.peers, args.peer_port)
        while True:
            poller.round()
            fleet = store.fleet()
            now = f"{fleet.verdict}: {coverage_text(fleet)}{fleet.reason and '; '}{fleet.reason}"
            if now != said:
                log("RESULT", fleet=now)
            said = now
            time.sleep(args.interval)


def parse_args(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="accept-report serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, metavar="HOST", help="name that stands for all pods with a report")
    parser.add_argument("--peer-port", type=int, default=8080, metavar="PORT")
    parser.add_argument("--port", type=int, default=8080, help="to serve on (8080)")
    parser.add_argument("--run-id", required=True, metavar="ID", help="reports of other runs do not count")
    parser.add_argument("--expect-nodes", type=int, metavar="N", help="fewer reports are INCOMPLETE")
    parser.add_argument("--interval", type=float, default=5, metavar="S", help="seconds between two rounds (5)")
    parser.add_argument("--accept-posts", action="store_true", help="take reports at /reports, too")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fleet", help="keeps the reports")
    return parser.parse_args(arguments)
