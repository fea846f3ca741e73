"""accept-report await: wait for the verdict of the fleet and exit with it.

Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE, or no verdict in time. A verdict counts
when no more reports are expected.
"""

from __future__ import annotations

import argparse
import time

from gpuworker.fleet.client import ask
from gpuworker.judgement.report import EXIT_CODES, INCOMPLETE
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log, write_termination_message
from gpuworker.runtime.option_types import positive, url

POLL_S = 2
WAITING = "more reports are expected"  # second line of /readyz


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "await", help="wait for the verdict of the fleet and exit with it", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    end, logged = time.monotonic() + args.timeout, ""
    while True:
        _, answer = ask(f"{args.url.rstrip('/')}/readyz")
        line, _, rest = answer.partition("\n")
        verdict, waiting = line.partition(":")[0], WAITING in rest
        late = time.monotonic() > end
        if verdict in EXIT_CODES and (late or not waiting):
            write_termination_message(line)
            log(Tag.FLEET.value, verdict=verdict, summary=line)
            return EXIT_CODES[verdict]
        if late:
            write_termination_message(f"no verdict after {args.timeout:g} s: {line}")
            log(Tag.FLEET.value, verdict=INCOMPLETE, summary=line)
            return EXIT_CODES[INCOMPLETE]
        if line != logged:
            log(Tag.FLEET.value, waiting=line)
        logged = line
        time.sleep(min(POLL_S, args.timeout))
