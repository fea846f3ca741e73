"""report-holder: serve the finished report. Ready means that the node passed.

/report.json  the report
/metrics      the same as Prometheus text
/readyz       200 if the verdict is PASS (or WARN), else 503 with the reason
/healthz      200: the holder lives, whatever the verdict
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpuworker.accept.report import PASS, WARN
from gpuworker.fleet.formats.prometheus import CONTENT_TYPE, prometheus
from gpuworker.fleet.merge import Expected, merge
from gpuworker.fleet.report_sources import from_text


class Handler(BaseHTTPRequestHandler):
    report: Path  # set by main

    def do_GET(self) -> None:
        if self.path == "/healthz":
            return self.answer(200, "alive\n")
        try:
            text = self.report.read_text()
            found = json.loads(text)
            verdict, reason = found["verdict"], found["reason"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self.answer(503, f"no report: {type(error).__name__}: {error}\n")
        if self.path == "/report.json":
            return self.answer(200, text, "application/json")
        if self.path == "/metrics":
            return self.answer(
                200, prometheus(merge(from_text("report.json", text.encode()), Expected(1))), CONTENT_TYPE
            )
        if self.path == "/readyz":
            return self.answer(200 if verdict in (PASS, WARN) else 503, f"{verdict}: {reason or 'all checks'}\n")
        self.answer(404, "there are /report.json, /metrics, /readyz and /healthz\n")

    def answer(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Say nothing: the kubelet probes every few seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="report-holder", description=__doc__.splitlines()[0])
    parser.add_argument("--report-dir", default="reports")
    parser.add_argument("--port", type=int, default=8080)
    args = parser.parse_args()
    Handler.report = Path(args.report_dir) / "report.json"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ThreadingHTTPServer(("", args.port), Handler) as server:
        print(f"[RESULT] serving {Handler.report} on port {server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
