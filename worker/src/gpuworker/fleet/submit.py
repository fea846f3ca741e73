"""accept-report submit: send a node's report to the collector and exit with the verdict of the
report.

With --stay it sends until the collector has taken the report, and then shows the collector that its
pod is there, which a collector that was started again asks to send once more. With a key the report
is signed. Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or the collector did not
accept the report in time, which then is the last line of the output.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import signal
import sys
import time
from http import HTTPStatus
from pathlib import Path

from gpuworker.accept.judge import judge
from gpuworker.fleet.client import ask
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.report import EXIT_CODES, INCOMPLETE, PASS, WARN, to_json
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import load_key
from gpuworker.runtime.option_types import positive, url

CONFIRM_S = 20
REFUSED = (400, 413, 422)  # the report itself


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "submit", help="send a node's report to the collector", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("report", type=Path, metavar="FILE", help="report.json of this node")
    parser.add_argument(
        "--to",
        type=url,
        required=True,
        metavar="URL",
        help="URL of the collector that ends with /reports",
    )
    parser.add_argument(
        "--timeout", type=positive, default=600, metavar="S", help="seconds to retry (default: 600)"
    )
    parser.add_argument("--stay", action="store_true", help="do not end")
    parser.add_argument(
        "--ready", type=Path, metavar="FILE", help="create this file if the node passed"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        key, data = load_key(), args.report.read_bytes()
    except OSError as error:
        return _failed(f"{args.report}: {error.strerror}")
    (source, *_) = from_text(str(args.report), data)
    if source.report is None:
        return _failed(source.error)
    verdict = judge(source.report).verdict
    if args.ready and verdict in (PASS, WARN):
        args.ready.touch()
    if args.stay:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    problem = send(data, args.to, math.inf if args.stay else args.timeout, key)
    reason = {"reason": problem} if problem else {}
    node = source.report.node
    log(Tag.RESULT.value, node=node, verdict=verdict, submitted=not problem, to=args.to, **reason)
    if problem:
        print(to_json(dataclasses.asdict(source.report), None), flush=True)
    while args.stay:
        time.sleep(CONFIRM_S)
        if not problem and not confirmed(data, args.to):
            problem = send(data, args.to, math.inf, key)
    return EXIT_CODES[INCOMPLETE] if problem and EXIT_CODES[verdict] == 0 else EXIT_CODES[verdict]


def _failed(reason: str) -> int:
    log(Tag.RESULT.value, submitted=False, reason=reason)
    return EXIT_CODES[INCOMPLETE]


def confirmed(data: bytes, address: str) -> bool:
    """Whether the collector has this report. It does not, if it was started again without it."""
    status, _ = ask(f"{address}/{hashlib.sha256(data).hexdigest()}")
    return status != HTTPStatus.NOT_FOUND  # while nobody answers it may have it


def send(data: bytes, address: str, timeout_s: float, key: bytes = b"") -> str:
    """Post until accepted; return "" or why it was not. Retries 401, for which a nonce may have
    been too old, and 409, since an earlier collector may still answer."""
    end, pause, said = time.monotonic() + timeout_s, 0.2, ""
    while True:
        status, answer = ask(address, data, key)
        if status == HTTPStatus.OK:
            return ""
        problem = f"{address} answers {status}: {answer.strip()}" if status else answer
        if status in REFUSED or time.monotonic() + pause > end:
            return problem
        if pause > 1 and problem != said:  # at once after an installation the page only starts
            log(Tag.RESULT.value, submitted=False, retrying=problem)
            said = problem
        time.sleep(pause)
        pause = min(2 * pause, 5)
