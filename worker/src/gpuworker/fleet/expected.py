"""Options of accept-report that set what the reports must cover."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import LEVELS
from gpuworker.judgement.limits import RULES, key_and_number
from gpuworker.judgement.report import NODE, Requested
from gpuworker.judgement.sources import Expected, Source
from gpuworker.runtime.option_types import positive_int

OF_DEVICE = ("gpus", "level", "check", "limit", "inject")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what was requested").add_argument
    add("--expect-nodes", type=positive_int, metavar="N", help="number of nodes that must report")
    add(
        "--expect-names",
        type=_names,
        default=(),
        metavar="NODE,…",
        help="names of the nodes that must report",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        help="what every node report must prove, with the following",
    )
    add("--gpus", type=int, metavar="N", help="GPUs of each node")
    add("--level", choices=LEVELS, help="level of the checks (default: quick)")
    add(
        "--check",
        action="append",
        choices=list(registry.node_checks()),
        metavar="NAME",
        help="default: all checks",
    )
    add(
        "--limit",
        action="append",
        type=key_and_number,
        metavar="KEY=NUMBER",
        help="as for accept-node",
    )
    add("--inject", metavar="FAULT", help="fault that was injected on purpose")


def from_args(args: argparse.Namespace, sources: Iterable[Source] = ()) -> Expected:
    """Exits with 2 if options contradict each other. Without --device, the `sources` show what
    was requested.
    """
    if args.expect_names and args.expect_nodes is not None:
        args.error("--expect-names sets the number of nodes: omit --expect-nodes")
    options = [name for name in OF_DEVICE if getattr(args, name) is not None]
    if args.device is None and options:
        args.error(f"--{options[0]} needs --device")
    gpus, checks, limits = args.gpus or 0, tuple(args.check or ()), dict(args.limit or ())
    if args.device is not None and (gpus < 0 or (args.device == "cuda") != (gpus > 0)):
        args.error(
            "--gpus is the number of GPUs of each node, at least 1 with --device cuda and"
            " 0 with --device cpu"
        )
    if unknown := sorted(set(limits) - known_limits()):
        args.error(f"--limit {unknown[0]}: unknown; known are {', '.join(sorted(known_limits()))}")
    requested = args.device and Requested(
        args.device, gpus, args.level or "quick", checks, limits, args.inject or ""
    )
    return Expected(
        args.expect_nodes, args.expect_names, args.run_id, requested=requested or _usual(sources)
    )


def known_limits() -> set[str]:
    """Keys of the table, and names of numbers."""
    return set(RULES) | {
        name for check in registry.node_checks().values() for name in check.measures
    }


def _usual(sources: Iterable[Source]) -> Requested | None:
    """What most of the node reports are of, which is then required of all; None without a node
    report.
    """
    reports = (source.report for source in sources)
    found = Counter(report.requested for report in reports if report and report.scope == NODE)
    return found.most_common(1)[0][0] if found else None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} contains an empty name; write node1,node2")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise argparse.ArgumentTypeError(f"{', '.join(twice)}: named twice")
    return names
