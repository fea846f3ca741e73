"""The command line of accept-node."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from gpuworker.accept import fault_injection
from gpuworker.accept.checks.environment import VERSIONS
from gpuworker.judgement.check_spec import LEVELS, Spec
from gpuworker.judgement.judge import at_level
from gpuworker.judgement.limits import RULES, key_and_number
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.option_types import positive, positive_int


def parse(checks: dict[str, Spec], description: str) -> argparse.Namespace:
    """Arguments, with `limits`, `expect` and `volumes` as dictionaries. Exits after --list and
    for wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="accept-node",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], help="cuda, or cpu for a rehearsal without GPUs")
    add("--gpus", type=int, default=0, help="GPUs that this node must show")
    add(
        "--level",
        choices=LEVELS,
        default="quick",
        help="quick: a minute; full: ten; burn-in: --burn-in-seconds; prolog: 15 s before a run, "
        "of the GPUs that NVIDIA_GPUS_VALIDATED names or NUM_GPUS_PER_NODE counts",
    )
    add(
        "--burn-in-seconds",
        type=positive,
        default=3600,
        help="total time of the burn-in level (3600)",
    )
    add("--check", action="append", metavar="NAME", help="only this check; repeat for more")
    add("--list", action="store_true", help="list checks and faults, and exit")
    add(
        "--inject",
        default="",
        metavar="FAULT",
        help="inject a fault; its check must find it (see --list)",
    )
    add("--limit", action="append", type=key_and_number, default=[], metavar="KEY=NUMBER",
        help="override a limit, by its key or the name of a number; repeat for more")  # fmt: skip
    add("--expect", nargs="+", type=_pair, action="extend", default=[], metavar="WHAT=VERSION",
        help="required versions, for example driver=570.86 torch=2.9")  # fmt: skip
    add("--volume", action="append", type=_pair, default=[], metavar="NAME=PATH",
        help="a volume of jobs, for the storage check: outputs=/out")  # fmt: skip
    add("--processes", type=positive_int, default=2, help="ranks of a rehearsal on the CPU (2)")
    add("--check-timeout", type=positive,
        help="of a check, in s (three times that of --list, plus 30, on the CPU 300)")  # fmt: skip
    add("--accepted", type=Path, metavar="FILE",
        help="prolog: compare with this report of the same GPUs' acceptance")  # fmt: skip
    add("--report-dir", default="reports", help="folder of report.json (reports)")
    add("--run-id", default="1", help="a run that has a report is not repeated")
    add(
        "--exit-zero",
        action="store_true",
        help="exit 0 once the report is written, whatever the verdict",
    )
    args = parser.parse_args()
    if args.list:
        print("\n".join(listing(checks)))
        sys.exit(0)
    if args.level == "prolog":
        _of_environment(args)
        if importlib.util.find_spec("torch") is None:  # no fault of the node
            parser.error("this Python has no torch")
    args.device = args.device or "cuda"
    if (args.device == "cuda") != (args.gpus > 0):
        parser.error("--gpus, the number of GPUs that this node must show, is for --device cuda")
    args.limits, args.expect = dict(args.limit), dict(args.expect)
    args.volumes = {name: Path(path) for name, path in args.volume}
    finders = {fault.id: fault.check for fault in fault_injection.known_faults(checks)}
    measures = {name for check in checks.values() for name in check.measures}
    for option, given, known in (
        ("--check", args.check or (), at_level(args.level, checks)),
        ("--inject", filter(None, [args.inject]), finders),
        ("--limit", args.limits, measures | set(RULES)),
        ("--expect", args.expect, VERSIONS),
    ):
        for word in set(given).difference(known):
            names = ", ".join(sorted(known))
            parser.error(f"{option} {word}: unknown at level {args.level}; known: {names}")
    finder = finders.get(args.inject)
    if finder and args.check and finder not in args.check:
        parser.error(f"--inject {args.inject} is found by --check {finder}, which is left out")
    for name, path in args.volumes.items():
        if not path.is_dir():
            parser.error(f"--volume {name}={path}: folder not found; mount the volume there")
    return args


def _of_environment(args: argparse.Namespace) -> None:
    """The GPUs that the environment of a run names or counts, where no option does."""
    uuids, count = gpu_inventory.given(), os.environ.get("NUM_GPUS_PER_NODE", "")
    if uuids:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    elif args.device is None and count == "0":
        args.device = "cpu"
    if args.device != "cpu":
        args.gpus = args.gpus or len(uuids) or (int(count) if count.isdecimal() else 0)


def listing(checks: dict[str, Spec]) -> list[str]:
    lines = ["CHECK            QUICK     FULL  BURN-IN   PROLOG  PROVES"]
    for check in checks.values():
        times = "".join(f"{_seconds(check, level):>9}" for level in LEVELS)
        lines.append(f"{check.name:<13}{times}  {check.proves}")
    lines += ["", "FAULT                     FOUND BY"]
    return lines + [
        f"{fault.id:<25} {fault.check or 'the runner'}"
        for fault in fault_injection.known_faults(checks)
    ]


def _seconds(check: Spec, level: str) -> str:
    return f"{check.seconds[level]:g} s" if level in check.seconds else "-"


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{word}: write it as NAME=VALUE")
    return key, value
