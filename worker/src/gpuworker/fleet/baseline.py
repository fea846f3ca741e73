"""An earlier run: read as a baseline, or put beside a later one with `accept-report diff BEFORE AFTER`.

Exit code of diff: 0 nothing worse than --warn percent or only warned, 1 a number is worse by more than --fail percent
or a node's verdict got worse to FAIL, 2 usage, 3 something of BEFORE is not in AFTER, or there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuworker.accept.report import EXIT_CODES, FAIL, INCOMPLETE, PASS, WARN
from gpuworker.fleet.fleet_report import FLEET_SCHEMA_VERSION, natural
from gpuworker.fleet.formats.table import plain, table
from gpuworker.fleet.merge import merge
from gpuworker.fleet.outliers import Number, worse_by
from gpuworker.fleet.report_sources import read

SHOWN = 40


def load(path: str) -> dict:
    """A run as fleet JSON: from a file of `accept-report --json`, or merged from node reports."""
    place = Path(path)
    if place.is_file():
        try:
            found = json.loads(place.read_bytes())
        except ValueError:
            found = None  # a log
        if isinstance(found, dict) and "distributions" in found:
            if found.get("schema_version") != FLEET_SCHEMA_VERSION:
                _refuse(f"{path} has schema_version {found.get('schema_version')!r}; this reads {FLEET_SCHEMA_VERSION}")
            return found
    sources = read(path)
    if unreadable := [f"{source.name}: {source.error}" for source in sources if source.error]:
        _refuse("; ".join(unreadable))
    return merge(sources).to_dict()


def _refuse(why: str) -> None:
    print(f"accept-report: {why}", file=sys.stderr)
    sys.exit(2)


def numbers_of(path: str) -> dict[Number, float]:
    return {key: value for key, (value, _, _, _) in _numbers(load(path)).items()}


def _numbers(fleet: dict) -> dict[Number, tuple[float, str, str, bool]]:
    """(node, device, check, measure) -> (value, unit, which is better, judged)."""
    return {
        (point["node"], point["device"], d["check"], d["name"]): (point["value"], d["unit"], d["better"], d["judged"])
        for d in fleet["distributions"]
        for point in d["points"]
    }


@dataclass(frozen=True)
class Change:
    key: Number
    before: float
    after: float
    unit: str
    worse: float  # percent; negative is better; 0 if nobody knows which way is better
    verdict: str


def changes(before: dict, after: dict, warn: float, fail: float) -> list[Change]:
    """Every number that both runs have, worst first. Speeds that are not judged are shown as PASS."""
    old, found = _numbers(before), []
    for key, (value, unit, better, judged) in _numbers(after).items():
        if key not in old:
            continue
        reference = old[key][0]
        worse = worse_by(value, reference, better) if better and reference else 0.0
        verdict = PASS if not judged or worse <= warn else WARN if worse <= fail else FAIL
        found.append(Change(key, reference, value, unit, worse, verdict))
    return sorted(found, key=lambda change: (-change.worse, change.key))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="accept-report diff", description=__doc__.splitlines()[0])
    parser.add_argument("before", help="--json of accept-report, a node report, or a folder of them")
    parser.add_argument("after")
    parser.add_argument("--warn", type=float, default=5, metavar="PERCENT", help="worse by more warns (5)")
    parser.add_argument("--fail", type=float, default=10, metavar="PERCENT", help="worse by more fails (10)")
    args = parser.parse_args(arguments)
    before, after = load(args.before), load(args.after)
    compared = changes(before, after, args.warn, args.fail)
    lost = sorted(set(_numbers(before)) - set(_numbers(after)))
    old, new = ({node["node"]: node["verdict"] for node in fleet["nodes"]} for fleet in (before, after))
    turned = [
        (node, old[node], new[node]) for node in sorted(set(old) & set(new), key=natural) if old[node] != new[node]
    ]
    verdict = _verdict(compared, lost, turned)
    print(f"{verdict}: {len(compared)} numbers of {len(set(old) & set(new))} nodes compared")
    rows = [
        [
            *map(plain, change.key),
            f"{change.before:.4g}",
            f"{change.after:.4g}",
            change.unit,
            f"{-change.worse:+.1f} %",
            change.verdict,
        ]
        for change in compared
    ]
    if rows:
        print(
            "\n".join(
                [
                    "",
                    *table(
                        [
                            ["NODE", "DEVICE", "CHECK", "MEASURE", "BEFORE", "AFTER", "UNIT", "BETTER BY", ""],
                            *rows[:SHOWN],
                        ]
                    ),
                ]
            )
        )
        if len(rows) > SHOWN:
            print(f"… and {len(rows) - SHOWN} that changed less for the worse")
    for node, was, now in turned:
        print(f"{plain(node)}: {was} before, {now} now")
    for node in sorted(set(old) ^ set(new), key=natural):
        print(f"{plain(node)}: only {'before' if node in old else 'after'}")
    if lost:
        print(f"not measured again: {len(lost)} numbers, for example {plain(' '.join(lost[0]))}")
    return EXIT_CODES[verdict]


def _verdict(compared: list[Change], lost: list[Number], turned: list[tuple[str, str, str]]) -> str:
    found = {change.verdict for change in compared}
    if FAIL in found or any(now == FAIL for _, _, now in turned):
        return FAIL
    if lost or not compared or any(now == INCOMPLETE for _, _, now in turned):
        return INCOMPLETE
    return WARN if WARN in found else PASS
