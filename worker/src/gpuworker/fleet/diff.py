"""accept-report diff: compare every number of two runs, the largest loss first.

Exit code 0: no number with a limit is worse by more than --fail percent; 1: one is, or the verdict of a node changed to
FAIL; 2: usage; 3: a number of BEFORE is missing in AFTER, is of another unit, GPU model, device or level there, or
cannot have been measured; a fault was injected, or a GPU is missing, in one of them; or nothing can be compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Container
from dataclasses import dataclass

from gpuworker.accept.report import EXIT_CODES, FAIL, INCOMPLETE, PASS, WARN
from gpuworker.fleet import baseline, expected
from gpuworker.fleet.fleet_report import natural_sort_key
from gpuworker.fleet.formats.table import align_columns, printable
from gpuworker.fleet.outliers import WITHOUT_LIMIT, Known, ValueKey, percent_lost, percent_worse
from gpuworker.runtime.option_types import positive

MOST_ROWS = 40
HEADER = ["NODE", "DEVICE", "CHECK", "MEASURE", "BEFORE", "AFTER", "UNIT", "BETTER BY", ""]

Values = dict[ValueKey, Known]  # of a run


@dataclass(frozen=True)
class Change:
    key: ValueKey
    before: float
    after: float
    unit: str
    worse: float  # percent; negative is better; 0 if the direction is not known
    verdict: str


def changes(
    old: Values, after: dict, skipped: Container[ValueKey], nodes: Container[str], warn: float, fail: float
) -> list[Change]:
    """Every number that both runs have, the largest loss first, without those that are `skipped`, or of `nodes`.

    A number without a limit is at most a WARN: some, such as an arrival within microseconds, vary many times over.
    """
    found = []
    for d in after["distributions"]:
        for point in d["points"]:
            key = (point["node"], point["device"], d["check"], d["name"])
            if key not in old or key in skipped or point["node"] in nodes:
                continue
            was = old[key].value
            worse = percent_worse(point["value"], was, d["better"]) if d["better"] and was else 0.0
            verdict = PASS if worse <= warn else WARN if worse <= fail else FAIL
            if not d["judged"]:
                lost = percent_lost(point["value"], was, d["better"]) if d["better"] and was else 0.0
                verdict = WARN if lost > WITHOUT_LIMIT[0] * warn and d["model"] != "cpu" else PASS
            found.append(Change(key, was, point["value"], d["unit"], worse, verdict))
    return sorted(found, key=lambda change: (-change.worse, change.key))


def incomparable(before: dict, after: dict) -> dict[str, str]:
    """Node, or world -> why none of its numbers is compared."""
    old, new, found = baseline.tested(before), baseline.tested(after), {}
    for name in sorted(set(old) & set(new), key=natural_sort_key):
        pair = ("before", old[name]), ("after", new[name])
        words = [f"the fault {each['injected']} was injected {when}" for when, each in pair if each["injected"]]
        for what in ("device", "level"):
            values = [f"{each[what]} {when}" for when, each in pair]
            words += [f"{what} {', '.join(values)}"] * (old[name][what] != new[name][what])
        if words:
            found[name] = "; ".join(words)
    return found


def not_compared(old: Values, new: Values, after: dict) -> dict[ValueKey, str]:
    """Numbers of both runs that are not compared -> why."""
    found = {}
    for d in after["distributions"]:
        for point in d["points"]:
            key = (point["node"], point["device"], d["check"], d["name"])
            if key in old and (
                why := old[key].differs(d["unit"], d["model"])
                or old[key].impossible(d["check"], d["name"], d["better"])
                or new[key].impossible(d["check"], d["name"], d["better"], "after")
            ):
                found[key] = why
    return dict(sorted(found.items()))


def lost_gpus(fleet: dict) -> dict[str, str]:
    """Node -> number of its GPUs, where some are missing."""
    return {
        node["node"]: f"{node['gpus_seen']} of {node['gpus_expected']} GPUs"
        for node in fleet["nodes"]
        if node["gpus_seen"] < node["gpus_expected"]
    }


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "diff", help="compare every number of two runs", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("before", metavar="BEFORE", help="output of merge --json, a report, or a folder of reports")
    parser.add_argument("after", metavar="AFTER", help="the same, of the later run")
    parser.add_argument("--warn", type=positive, default=5, metavar="PERCENT", help="WARN if worse by more (5)")
    parser.add_argument("--fail", type=positive, default=10, metavar="PERCENT", help="FAIL if worse by more (10)")
    parser.set_defaults(run=run, error=parser.error)


def run(args: argparse.Namespace) -> int:
    expected.refuse_reversed(args, args.warn, args.fail)
    before, after = baseline.load(args.before), baseline.load(args.after)
    known, later = baseline.values(before), baseline.values(after)
    missing = sorted(set(known) - set(later))
    unlike, others = incomparable(before, after), not_compared(known, later, after)
    compared = changes(known, after, others, unlike, args.warn, args.fail)
    lost = [(node, f"{count} {when}") for when, fleet in (("before", before), ("after", after))
            for node, count in lost_gpus(fleet).items()]  # fmt: skip
    old, new = ({node["node"]: node["verdict"] for node in fleet["nodes"]} for fleet in (before, after))
    in_both = sorted(set(old) & set(new), key=natural_sort_key)
    changed = [(node, old[node], new[node]) for node in in_both if old[node] != new[node]]
    verdict = _verdict(compared, bool(missing or others or unlike or lost), {now for _, _, now in changed})
    print(f"{verdict}: {len(compared)} numbers of {len(in_both)} nodes compared")
    if compared:
        print("", *align_columns([HEADER, *map(_row, compared[:MOST_ROWS])]), sep="\n")
    if len(compared) > MOST_ROWS:
        print(f"… and {len(compared) - MOST_ROWS} numbers with a smaller loss")
    for node, was, now in changed:
        print(f"{printable(node)}: {was} before, {now} after")
    for node in sorted(set(old) ^ set(new), key=natural_sort_key):
        print(f"{printable(node)}: only {'before' if node in old else 'after'}")
    for node, why in [*lost, *((name, f"not compared: {why}") for name, why in unlike.items())]:
        print(f"{printable(node)}: {printable(why)}")
    for key, why in [each for each in others.items() if each[0][0] not in unlike][:MOST_ROWS]:
        print(f"not compared: {printable(' '.join(filter(None, key)))}: {printable(why)}")
    if missing:
        print(f"missing after: {len(missing)} numbers, for example {printable(' '.join(missing[0]))}")
    return EXIT_CODES[verdict]


def _row(change: Change) -> list[str]:
    numbers = [f"{change.before:.4g}", f"{change.after:.4g}", change.unit, f"{-change.worse:+.1f} %"]
    return [*map(printable, change.key), *numbers, change.verdict]


def _verdict(compared: list[Change], missing: bool, new_verdicts: set[str]) -> str:
    found = {change.verdict for change in compared}
    if FAIL in found | new_verdicts:
        return FAIL
    if missing or not compared or INCOMPLETE in new_verdicts:
        return INCOMPLETE
    return WARN if WARN in found else PASS
