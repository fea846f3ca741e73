"""accept-report submit: send a node's report to the collector and exit with the verdict of the report.

For pods that end after the test, so that the collector cannot fetch their report. With a key the report is signed.
Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or the collector did not accept the report in time.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpuworker.accept.report import EXIT_CODES, INCOMPLETE
from gpuworker.fleet.http_handler import DIGEST_HEADER, NONCE_HEADER, POSTED, SIGNATURE_HEADER
from gpuworker.fleet.report_sources import from_text
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError, load_key, sign
from gpuworker.runtime.option_types import positive, url


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "submit", help="send a node's report to the collector", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("report", type=Path, metavar="FILE", help="report.json of this node")
    parser.add_argument(
        "--to", type=url, required=True, metavar="URL", help="URL of the collector that ends with /reports"
    )
    parser.add_argument("--timeout", type=positive, default=120, metavar="S", help="seconds to retry (default: 120)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        key, data = load_key(), args.report.read_bytes()
    except OSError as error:
        return _failed(f"{args.report}: {error.strerror}")
    except KeyFileError as error:
        _failed(str(error))
        return ExitCode.USAGE
    (source,) = from_text(str(args.report), data)
    if source.report is None:
        return _failed(source.error)
    verdict, problem = source.report["verdict"], send(data, args.to, args.timeout, key)
    reason = {"reason": problem} if problem else {}
    log(Tag.RESULT.value, node=source.report["node"], verdict=verdict, submitted=not problem, to=args.to, **reason)
    return EXIT_CODES[INCOMPLETE] if problem and EXIT_CODES[verdict] == 0 else EXIT_CODES[verdict]


def _failed(reason: str) -> int:
    log(Tag.RESULT.value, submitted=False, reason=reason)
    return EXIT_CODES[INCOMPLETE]


def send(data: bytes, address: str, timeout_s: float, key: bytes = b"") -> str:
    """Post until accepted; return "" or why it was not. Retries 401, for which a nonce may have been too old, and 409,
    since an earlier collector may still answer."""
    end, pause = time.monotonic() + timeout_s, 0.2
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the collector is in the cluster
    while True:
        try:
            with direct.open(_request(direct, data, address, key), timeout=10):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"{address} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
            if error.code in (400, 413, 422):  # the report itself is refused
                return problem
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{address}: {getattr(error, 'reason', error)}"
        if time.monotonic() + pause > end:
            return problem
        time.sleep(pause)
        pause = min(2 * pause, 5)


def _request(direct: urllib.request.OpenerDirector, data: bytes, address: str, key: bytes) -> urllib.request.Request:
    """The request with the report; with a key signed for a nonce of the collector."""
    headers = {"Content-Type": "application/json"}
    if key:
        with direct.open(address.removesuffix("/reports") + "/nonce", timeout=10) as response:
            nonce = response.read(200).decode()
        digest = hashlib.sha256(data).hexdigest()
        signature = sign(key, POSTED, nonce, digest)
        headers |= {NONCE_HEADER: nonce, DIGEST_HEADER: digest, SIGNATURE_HEADER: signature}
    return urllib.request.Request(address, data, headers, method="POST")
