"""accept-report send: hand a node's report to the collector, and end with the report's verdict.

For pods that end after the test: a collector cannot ask them any more.
Exit code 0: PASS or WARN, 1: FAIL, 2: usage, 3: INCOMPLETE, or the collector did not take the report in time.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpuworker.accept.report import EXIT_CODES, INCOMPLETE
from gpuworker.fleet.report_sources import from_text
from gpuworker.runtime.log import log


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="accept-report send", description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="report.json of this node")
    parser.add_argument("--to", required=True, metavar="URL", help="the collector's /reports")
    parser.add_argument("--deadline", type=float, default=120, metavar="S", help="seconds to try (120)")
    args = parser.parse_args(arguments)
    try:
        data = args.report.read_bytes()
    except OSError as error:
        log("RESULT", sent="no", reason=f"{args.report}: {error.strerror}")
        return EXIT_CODES[INCOMPLETE]
    (source,) = from_text(str(args.report), data)
    if source.report is None:
        log("RESULT", sent="no", reason=source.error)
        return EXIT_CODES[INCOMPLETE]
    verdict, why = source.report["verdict"], send(data, args.to, args.deadline)
    log("RESULT", verdict=verdict, sent="no" if why else "yes", to=args.to, **({"reason": why} if why else {}))
    return EXIT_CODES[INCOMPLETE] if why and EXIT_CODES[verdict] == 0 else EXIT_CODES[verdict]


def send(data: bytes, url: str, deadline_s: float) -> str:
    """Post until it is taken; the reason why it was not, or "". The collector of an earlier run may still answer."""
    end, pause = time.monotonic() + deadline_s, 0.2
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the collector is in the cluster
    while True:
        try:
            with direct.open(request, timeout=10):
                return ""
        except urllib.error.HTTPError as error:
            why = f"{url} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
            if error.code in (400, 413):  # the report is refused, now and later
                return why
        except OSError as error:
            why = f"{url}: {getattr(error, 'reason', error)}"
        if time.monotonic() + pause > end:
            return why
        time.sleep(pause)
        pause = min(2 * pause, 5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
