"""accept-report submit: send a node's report to the collector and exit with the verdict of the
report.

With --stay it sends until the collector has taken the report, and then shows the collector that its
pod is there, which a collector that was started again asks to send once more. With a key the report
is signed. Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or the collector did not
accept the report in time, which then is the last line of the output.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import math
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpuworker.accept.judge import judge
from gpuworker.fleet.http_handler import DIGEST_HEADER, NONCE_HEADER, POSTED, SIGNATURE_HEADER
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.report import EXIT_CODES, INCOMPLETE, PASS, WARN, report_dict, to_json
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError, load_key, sign
from gpuworker.runtime.option_types import positive, url

CONFIRM_S = 20
# the collector is in the cluster
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
    except KeyFileError as error:
        _failed(str(error))
        return ExitCode.USAGE
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
    log(
        Tag.RESULT.value,
        node=source.report.node,
        verdict=verdict,
        submitted=not problem,
        to=args.to,
        **reason,
    )
    if problem:
        print(to_json(report_dict(source.report), None), flush=True)
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
    try:
        with DIRECT.open(f"{address}/{hashlib.sha256(data).hexdigest()}", timeout=10):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 404
    except (OSError, http.client.HTTPException):
        return True  # for now: nobody answers


def send(data: bytes, address: str, timeout_s: float, key: bytes = b"") -> str:
    """Post until accepted; return "" or why it was not. Retries 401, for which a nonce may have
    been too old, and 409, since an earlier collector may still answer."""
    end, pause, said = time.monotonic() + timeout_s, 0.2, ""
    while True:
        try:
            with DIRECT.open(request(data, address, key), timeout=10):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"{address} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
            if error.code in (400, 413, 422):  # the report itself is refused
                return problem
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{address}: {getattr(error, 'reason', error)}"
        if time.monotonic() + pause > end:
            return problem
        if pause > 1 and problem != said:  # at once after an installation the page only starts
            log(Tag.RESULT.value, submitted=False, retrying=problem)
            said = problem
        time.sleep(pause)
        pause = min(2 * pause, 5)


def request(data: bytes, address: str, key: bytes) -> urllib.request.Request:
    """A POST to the collector; with a key signed for a nonce of it."""
    headers = {"Content-Type": "application/json"}
    if key:
        with DIRECT.open(f"{address.rpartition('/')[0]}/nonce", timeout=10) as response:
            nonce = response.read(200).decode()
        digest = hashlib.sha256(data).hexdigest()
        signature = sign(key, POSTED, nonce, digest)
        headers |= {NONCE_HEADER: nonce, DIGEST_HEADER: digest, SIGNATURE_HEADER: signature}
    return urllib.request.Request(address, data, headers, method="POST")
