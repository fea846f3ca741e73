"""report-server: serve the finished report of one node. The pod is ready if the node passed.

/report.json  the report
/metrics      the same as Prometheus text
/readyz       200 if the verdict is PASS or WARN, else 503 with the reason
/healthz      200 while the server runs, whatever the verdict
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from gpuworker.accept.report import PASS, WARN
from gpuworker.fleet.expected import Expected
from gpuworker.fleet.formats.prometheus import CONTENT_TYPE, prometheus
from gpuworker.fleet.http_handler import TEXT, ReportHandler, ReportServer
from gpuworker.fleet.merge import merge
from gpuworker.fleet.report_sources import from_text
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import REPORT_PORT, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError, load_key
from gpuworker.runtime.option_types import port


class NodeHandler(ReportHandler):
    paths = ("/report.json", "/metrics", "/readyz")
    report: Path  # set by main

    def get(self, path: str) -> tuple[int, str, str]:
        try:
            text = self.report.read_text()
            report = json.loads(text)
            verdict, reason = report["verdict"], report["reason"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return 503, f"no report: {type(error).__name__}: {error}\n", TEXT
        if path == "/report.json":
            return 200, text, "application/json"
        if path == "/metrics":
            return 200, prometheus(merge(from_text("report.json", text.encode()), Expected(1))), CONTENT_TYPE
        return 200 if verdict in (PASS, WARN) else 503, f"{verdict}: {reason or 'all checks'}\n", TEXT


def main() -> None:
    escape_output()
    parser = argparse.ArgumentParser(
        prog="report-server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report-dir", type=Path, default="reports", help="folder of report.json (default: reports)")
    parser.add_argument("--port", type=port, default=REPORT_PORT, help=f"port to serve on (default: {REPORT_PORT})")
    args = parser.parse_args()
    try:
        NodeHandler.key = load_key()
    except KeyFileError as error:
        parser.error(str(error))
    NodeHandler.report = args.report_dir / "report.json"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ReportServer(args.port, NodeHandler) as server:
        log(Tag.RESULT.value, serving=NodeHandler.report, port=server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    main()
