"""Compact reports: what a merge needs of a node's report, in a tenth of the memory.

The collector keeps thousands of reports, each with hundreds of measurements. Findings are made before, from the whole
report, which stays on the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

FACTS_OF_CHECKS = ("hash_group", "curves", "gpus", "ports")


class Number(NamedTuple):
    """The fields of a measurement that a comparison uses."""

    name: str
    unit: str
    device: str
    better: str
    judged: bool
    limit: float | None
    warn_limit: float | None
    limit_source: str
    value: float | None


def numbers(check: dict) -> Iterator[Number]:
    """The measurements of a check of a report, compact or not."""
    if "numbers" in check:
        yield from check["numbers"]
    else:
        for found in check["measurements"]:
            yield Number(*(found[field] for field in Number._fields))


def compact(report: dict) -> dict:
    """The report with `numbers` in place of measurements, and without samples, problems and most facts of checks."""
    return {**report, "checks": [_compact_check(check) for check in report["checks"]]}


def _compact_check(check: dict) -> dict:
    shared = ("name", "verdict", "reason")
    return {
        **{key: sys.intern(check[key]) for key in shared},
        "hashes": {sys.intern(key): value for key, value in check["hashes"].items()},
        "facts": {key: check["facts"][key] for key in FACTS_OF_CHECKS if key in check["facts"]},
        "numbers": tuple(
            Number(*(sys.intern(field) if isinstance(field, str) else field for field in number))
            for number in numbers(check)
        ),
    }
