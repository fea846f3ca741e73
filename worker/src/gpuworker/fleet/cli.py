"""accept-report: one result of any number of node reports.

  accept-report reports/                              # files and folders of report.json
  kubectl logs -l … --prefix --tail=-1 | accept-report --expect-nodes 16
  accept-report reports/ --html page.html --junit junit.xml --prometheus fleet.prom --json fleet.json
  accept-report reports/ --baseline earlier.json      # what is slower than in an earlier run?
  accept-report diff before/ after/                   # every number of two runs, side by side
  accept-report serve --help                          # collect and show the reports of running pods

Exit code 0: PASS or WARN, 1: FAIL, 2: usage, 3: INCOMPLETE.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from gpuworker.accept.report import EXIT_CODES
from gpuworker.fleet import baseline, collector, submit
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.formats.html import page
from gpuworker.fleet.formats.junit import junit
from gpuworker.fleet.formats.prometheus import prometheus
from gpuworker.fleet.formats.table import text
from gpuworker.fleet.merge import Expected, merge
from gpuworker.fleet.outliers import Thresholds
from gpuworker.fleet.report_sources import Source, read


def as_json(fleet: Fleet) -> str:
    return json.dumps(fleet.to_dict(), allow_nan=False) + "\n"


FORMS: dict[str, Callable[[Fleet], str]] = {"json": as_json, "junit": junit, "prometheus": prometheus, "html": page}
OTHERS = {"diff": baseline.main, "serve": collector.main, "send": submit.main}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in OTHERS:
        sys.exit(OTHERS[sys.argv[1]](sys.argv[2:]))
    sys.exit(merge_main(sys.argv[1:]))


def merge_main(arguments: list[str]) -> int:
    args = parse_args(arguments)
    sources: list[Source] = [source for path in args.paths or ["-"] for source in read(path)]
    expected = Expected(args.expect_nodes, args.expect, args.run_id)
    thresholds = Thresholds(args.fleet_warn, args.fleet_fail, args.baseline_warn, args.baseline_fail)
    earlier = baseline.numbers_of(args.baseline) if args.baseline else None
    fleet = merge(sources, expected, thresholds, earlier)
    wanted = {form: target for form in FORMS if (target := getattr(args, form))}
    for form, target in wanted.items():
        written = FORMS[form](fleet)
        if target == "-":
            sys.stdout.write(written)
        else:
            Path(target).write_text(written, encoding="utf-8")
    if "-" not in wanted.values():
        sys.stdout.write(text(fleet))
    return EXIT_CODES[fleet.verdict]


def parse_args(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="accept-report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="report.json, a log, a folder of them, or - (default)")
    parser.add_argument("--expect-nodes", type=int, metavar="N", help="fewer reports are INCOMPLETE")
    parser.add_argument("--expect", type=_names, default=(), metavar="NODE,…", help="nodes that must have reported")
    parser.add_argument("--run-id", metavar="ID", help="reports of other runs do not count")
    parser.add_argument("--baseline", metavar="PATH", help="an earlier run: --json of accept-report, or node reports")
    for name, default, what in (
        ("fleet-warn", 5, "worse than the median of the fleet: WARN"),
        ("fleet-fail", 10, "worse than the median of the fleet: FAIL"),
        ("baseline-warn", 5, "worse than the baseline: WARN"),
        ("baseline-fail", 10, "worse than the baseline: FAIL"),
    ):
        parser.add_argument(f"--{name}", type=_percent, default=default, metavar="PERCENT", help=f"{what} ({default})")
    for form in FORMS:
        parser.add_argument(f"--{form}", metavar="FILE", help=f"write the result as {form}; - is standard output")
    args = parser.parse_args(arguments)
    if args.expect and args.expect_nodes is not None:
        parser.error("--expect says how many nodes there are: leave out --expect-nodes")
    if args.expect_nodes is not None and args.expect_nodes < 1:
        parser.error(f"--expect-nodes {args.expect_nodes}: at least one node must be expected")
    if args.fleet_warn > args.fleet_fail or args.baseline_warn > args.baseline_fail:
        parser.error("a percentage that warns must not be above the one that fails")
    if sum(getattr(args, form) == "-" for form in FORMS) > 1:
        parser.error("only one form can go to standard output")
    if not args.paths and sys.stdin.isatty():
        parser.error("name files or folders, or pipe a log into it: kubectl logs … | accept-report")
    return args


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write node1,node2")
    return names


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value < 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100 percent")
    return value


if __name__ == "__main__":
    main()
