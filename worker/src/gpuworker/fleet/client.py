"""Client of the collector: a pod sends its report, a person or a Job waits for the verdict."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import http.client
import math
import signal
import sys
import time
import urllib.request
from http import HTTPStatus
from pathlib import Path

from gpuworker.fleet.http_handler import (
    DIGEST_HEADER,
    NONCE_HEADER,
    POSTED,
    SIGNATURE_HEADER,
    WAITING,
)
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.judge import judge
from gpuworker.judgement.report import EXIT_CODES, INCOMPLETE, PASS, WARN, to_json
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log, write_termination_message
from gpuworker.runtime.message_auth import load_key, sign
from gpuworker.runtime.option_types import positive, url

TIMEOUT_S = 10.0
MOST_BYTES = 65536  # of an answer
CONFIRM_S = 20
POLL_S = 2
REFUSED = (400, 413, 422)  # the report itself


class EveryStatus(urllib.request.HTTPErrorProcessor):
    """Hands on answers of every status."""

    def http_response(self, request: object, response: object) -> object:
        return response

    https_response = http_response


# The collector is in the cluster, and behind no proxy.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), EveryStatus)


def ask(address: str, data: bytes | None = None, key: bytes = b"") -> tuple[int, str]:
    """Status and text of the answer, or 0 and why there is none. With `data` it is a POST, with a
    key signed for a nonce of the collector.
    """
    try:
        headers = {"Content-Type": "application/json"}
        if data is not None and key:
            headers |= signature(address, data, key)
        request = urllib.request.Request(address, data, headers)
        with DIRECT.open(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, f"{address}: {getattr(error, 'reason', error)}"


def signature(address: str, data: bytes, key: bytes) -> dict[str, str]:
    """Headers of a message."""
    _, nonce = ask(f"{address.rpartition('/')[0]}/nonce")
    digest = hashlib.sha256(data).hexdigest()
    signed = sign(key, POSTED, nonce, digest)
    return {NONCE_HEADER: nonce, DIGEST_HEADER: digest, SIGNATURE_HEADER: signed}


def submit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", type=Path, metavar="FILE", help="report.json of this node")
    add(
        "--to",
        type=url,
        required=True,
        metavar="URL",
        help="URL of the collector that ends with /reports",
    )
    add(
        "--timeout", type=positive, default=600, metavar="S", help="seconds to retry (default: 600)"
    )
    add("--stay", action="store_true", help="do not end")
    add("--ready", type=Path, metavar="FILE", help="create this file if the node passed")


def submit(args: argparse.Namespace) -> int:
    """Send a node's report to the collector and exit with the verdict of the report.

    With --stay it sends until the collector has taken the report, and then shows the collector that
    its pod is there, which a collector that was started again asks to send once more. With a key
    the report is signed. Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or the
    collector did not accept the report in time, which then is the last line of the output.
    """
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
    confirm = f"{args.to}/{hashlib.sha256(data).hexdigest()}"
    while args.stay:
        time.sleep(CONFIRM_S)
        # A collector that was started again has no report. While nobody answers it may have it.
        if not problem and ask(confirm)[0] == HTTPStatus.NOT_FOUND:
            problem = send(data, args.to, math.inf, key)
    return EXIT_CODES[verdict] or (EXIT_CODES[INCOMPLETE] if problem else 0)


def _failed(reason: str) -> int:
    log(Tag.RESULT.value, submitted=False, reason=reason)
    return EXIT_CODES[INCOMPLETE]


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


def await_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", type=url, metavar="URL", help="URL of the collector, for example http://HOST:8080"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=3600,
        metavar="S",
        help="seconds to wait (default: 3600)",
    )


def await_verdict(args: argparse.Namespace) -> int:
    """Wait for the verdict of the fleet and exit with it.

    Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or no verdict in time. A verdict
    counts when no more reports are expected.
    """
    end, said = time.monotonic() + args.timeout, ""
    while True:
        _, answer = ask(f"{args.url.rstrip('/')}/readyz")
        line, _, rest = answer.partition("\n")
        verdict, late = line.partition(" ")[0].rstrip(":"), time.monotonic() > end
        known = verdict in EXIT_CODES and (late or WAITING not in rest)
        if known or late:
            verdict = verdict if known else INCOMPLETE
            words = line if known else f"no verdict after {args.timeout:g} s: {line}"
            write_termination_message(words)
            log(Tag.FLEET.value, verdict=verdict, summary=line)
            return EXIT_CODES[verdict]
        if line != said:
            log(Tag.FLEET.value, waiting=line)
        said = line
        time.sleep(min(POLL_S, args.timeout))
