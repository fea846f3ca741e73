"""accept-report: merge reports into one fleet report, serve a page, submit a report.

accept-report merge reports/ --expect-nodes 16               # files and folders of reports
accept-report merge reports.jsonl --expect-nodes 16          # as the page saves them: /reports
accept-report merge reports/ --html page.html --json fleet.json
accept-report serve --run-id ID --expect-nodes 16            # the page, to which pods submit
accept-report await URL                                      # exit with the verdict of the fleet
accept-report submit report.json --to URL                    # from a pod that ends after its test
accept-report world --to URL …                               # checks across nodes, from a pod
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuworker.fleet import client, collector, expected, world
from gpuworker.fleet.formats.page import page
from gpuworker.fleet.formats.table import table
from gpuworker.fleet.report_sources import read
from gpuworker.judgement.fleet_report import Fleet, json_text
from gpuworker.judgement.merge import merge
from gpuworker.judgement.report import EXIT_CODES
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import KeyFileError

FORMATS: dict[str, Callable[[Fleet], str]] = {"json": json_text, "html": page}


def main(arguments: Sequence[str] | None = None) -> None:
    escape_output()
    layout = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    program = argparse.ArgumentParser("accept-report", description=__doc__, **layout)
    commands = program.add_subparsers(metavar="COMMAND", required=True)
    for name, (add_options, run) in COMMANDS.items():
        text = inspect.getdoc(run) or ""  # None with -OO
        title = text.partition("\n")[0]
        parser = commands.add_parser(name, help=title, description=text, **layout)
        add_options(parser)
        parser.set_defaults(run=run, error=parser.error)
    args = program.parse_args(arguments)
    try:
        sys.exit(args.run(args))
    except KeyFileError as error:
        log(Tag.FATAL.value, exit_code=int(ExitCode.USAGE), why=error)
        sys.exit(ExitCode.USAGE)


def merge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="reports, log, folder of them, or - (default: -)"
    )
    parser.add_argument("--run-id", metavar="ID", help="ignore the reports of other runs")
    expected.add_options(parser)
    for name in FORMATS:
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {name}; - is standard output")


def merge_files(args: argparse.Namespace) -> int:
    """Merge any number of reports into one fleet report.

    Without --device, every report must be of the device, GPUs, level and checks that most of them
    have. Exit code 0: PASS or WARN; 1: FAIL; 2: usage; 3: INCOMPLETE.
    """
    check_usage(args)
    sources = [source for path in args.paths or ["-"] for source in read(path)]
    fleet = merge(sources, expected.from_args(args, sources))
    targets = {name: target for name in FORMATS if (target := getattr(args, name))}
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: as the files
    try:
        for name, target in targets.items():
            if target == "-":
                sys.stdout.write(FORMATS[name](fleet))
            else:
                Path(target).write_text(FORMATS[name](fleet), encoding="utf-8")
        if "-" not in targets.values():
            sys.stdout.write(table(fleet))
        sys.stdout.flush()
    except OSError as error:
        words = f"{error.filename or 'standard output'}: {error.strerror}"
        print(f"the result cannot be written: {words}", file=sys.stderr)
        os._exit(2)  # without another try to write what is left of it
    return EXIT_CODES[fleet.verdict]


def check_usage(args: argparse.Namespace) -> None:
    """Exit with 2 if options contradict each other."""
    if sum(getattr(args, name) == "-" for name in FORMATS) > 1:
        args.error("only one format can be written to standard output")
    files = [target for name in FORMATS if (target := getattr(args, name)) not in (None, "", "-")]
    if len({Path(target).resolve() for target in files}) < len(files):
        names = " and ".join(f"--{name}" for name in FORMATS)
        args.error(f"{names} would be written to one file, {files[0]}")
    if not args.paths and sys.stdin.isatty():
        args.error("name files or folders, or pipe a log: kubectl logs … | accept-report merge")


COMMANDS = {
    "merge": (merge_options, merge_files),
    "serve": (collector.add_options, collector.serve),
    "submit": (client.submit_options, client.submit),
    "await": (client.await_options, client.await_verdict),
    "world": (world.add_options, world.run),
}

if __name__ == "__main__":
    main()
