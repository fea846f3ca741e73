"""Report of the checks of one node, or of the checks across nodes: the one declaration of the format.

A report is written as a JSON file (schemas/report.schema.json), as `[REPORT]` lines of the log, and, short, as the
termination message of the container.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.runtime.plain_files import replace_plain

PASS, WARN, FAIL, INCOMPLETE, SKIP = "PASS", "WARN", "FAIL", "INCOMPLETE", "SKIP"
# The verdict of a node is the worst of its checks. FAIL outranks INCOMPLETE: one proven fault is enough.
WORST_FIRST = (FAIL, INCOMPLETE, WARN, PASS)
EXIT_CODES = {PASS: 0, WARN: 0, FAIL: 1, INCOMPLETE: 3}
SCHEMA_VERSION = 3
NODE, WORLD = "node", "world"  # scope of a report
LARGEST_NUMBER = 1e100  # no measured value needs more, and sums of such values stay finite
MOST_UNPACKED_BYTES = 16 << 20  # a few bytes of a log can unpack to gigabytes
LOG_PART_BYTES = 12_000  # container runtimes split lines at 16 KiB


@dataclass
class Measurement:
    """One number of one device ("cuda:3", "rank 5", "cuda:0→cuda:1"; "" is the whole node, or the whole world).

    A check sets the first four fields, verdict.py the others. The check fails on the wrong side of `limit` and warns on
    the wrong side of `warn_limit`. `margin` is value / limit (limit / value if lower is better): 1 meets the limit.
    `ceiling` is the most that the hardware can do. `better` is "higher", "lower", or "" without a direction.
    `judged`: the number has a limit key, so an outlier among many devices is a finding.
    """

    name: str
    value: float
    unit: str
    device: str = ""
    limit: float | None = None
    warn_limit: float | None = None
    limit_source: str = ""
    margin: float | None = None
    ceiling: float | None = None
    better: str = ""
    judged: bool = False


@dataclass
class Problem:
    """One problem that a check found. A FAIL check may have problems that are a WARN."""

    verdict: str
    reason: str


@dataclass
class Check:
    """Result of one check. `reason` explains a verdict other than PASS; `problems` are its parts."""

    name: str
    verdict: str
    reason: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    duration_s: float = 0.0
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Coverage:
    """Requested and reported checks and GPUs. A PASS needs all of them."""

    checks_expected: int
    gpus_expected: int = 0
    gpus_seen: int = 0
    checks_reported: int = 0
    left_out: list[str] = field(default_factory=list)  # checks of this level that the user did not choose


@dataclass
class WorldNode:
    """One node of a world and its ranks in ascending order."""

    node: str
    ranks: list[int]


@dataclass
class World:
    """The ranks that ran the checks of a report of scope "world", by node."""

    size: int
    nodes: list[WorldNode]


@dataclass
class Report:
    """Checks and their verdict. Scope "node": one node tested itself. Scope "world": the ranks of `world` tested each
    other, and `node` and `pod` are those of rank 0."""

    node: str
    pod: str
    run_id: str
    device: str
    level: str
    started: str
    coverage: Coverage
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    duration_s: float = 0.0
    injected: str = ""  # fault that was injected on purpose: the report does not judge the hardware
    scope: str = NODE
    world: World | None = None  # None in a report of scope "node"
    schema_version: int = SCHEMA_VERSION

    @property
    def verdict(self) -> str:
        """PASS needs evidence: at least one check that passed, and none that did worse."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in WORST_FIRST if verdict in found), INCOMPLETE)

    @property
    def reason(self) -> str:
        if not self.checks:
            return "no check ran"
        if {check.verdict for check in self.checks} == {SKIP}:
            return "every check was skipped"
        return "; ".join(f"{c.name}: {c.reason}" for c in self.checks if c.verdict == self.verdict and c.reason)

    @property
    def summary(self) -> str:
        """One line for people: the verdict, then the reason or the numbers."""
        notes = ["CPU rehearsal"] * (self.device == "cpu") + [f"{self.injected} injected"] * bool(self.injected)
        notes += [f"{', '.join(self.coverage.left_out)} left out"] * bool(self.coverage.left_out)
        note = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.verdict}{note}: {self.reason or ', '.join(self.numbers)}"

    @property
    def numbers(self) -> list[str]:
        return [text for check in self.checks for text in describe(check.measurements)]

    @property
    def termination_message(self) -> str:
        """The summary, then the numbers, which Kubernetes may truncate."""
        return "\n".join([self.summary, *self.numbers] if self.reason else [self.summary])

    def to_dict(self) -> dict:
        return {
            **dataclasses.asdict(self),
            "verdict": self.verdict,
            "reason": self.reason,
            "rehearsal": self.device == "cpu",
        }


def describe(measurements: list[Measurement]) -> list[str]:
    """A few words for each kind of number: `gemm_bf16 cuda:0 731 TFLOP/s`, or `gemm_bf16 712…731 TFLOP/s` of many."""
    kinds: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        kinds.setdefault((measurement.name, measurement.unit), []).append(measurement)
    texts = []
    for (name, unit), found in kinds.items():
        values = [measurement.value for measurement in found]
        one = f"{found[0].device} {values[0]:.4g}".strip()
        texts.append(f"{name} {one if len(found) == 1 else f'{min(values):.4g}…{max(values):.4g}'} {unit}")
    return texts


def to_log_lines(report: dict) -> list[str]:
    """`[REPORT] CRC PART/PARTS DATA`: compressed JSON in lines that no container runtime splits."""
    packed = zlib.compress(to_json(report, indent=None).encode(), 9)
    data, crc = base64.b64encode(packed).decode(), zlib.crc32(packed)
    parts = [data[start : start + LOG_PART_BYTES] for start in range(0, len(data), LOG_PART_BYTES)]
    return [f"[REPORT] {crc:08x} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]


def parsed(text: str | bytes) -> object:
    """JSON in which no key of an object stands twice: readers would differ in the value that counts.

    Raises ValueError."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"damaged report: {next(n for n in names if names.count(n) > 1):.80} stands twice")
    return found


def from_log_lines(lines: Iterable[str]) -> list[dict]:
    """The reports in a log, in order; whatever stands before `[REPORT]` (a pod's name, a time) is ignored.

    Raises ValueError for a report with a part that is missing or damaged.
    """
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for line in lines:
        if found := re.search(r"\[REPORT\] ([0-9a-f]{8}) (\d+)/(\d+) ([A-Za-z0-9+/=]+)\s*$", line):
            crc, number, count, data = found.groups()
            parts.setdefault((crc, int(count)), {})[int(number)] = data
    reports = []
    for (crc, count), found in parts.items():
        # Not a set of all numbers: the count is any number that a program has printed.
        if missing := next((number for number in range(1, count + 1) if number not in found), 0):
            raise ValueError(f"report {crc}: part {missing} of {count} is missing from the log")
        try:
            packed = base64.b64decode("".join(found[number] for number in range(1, count + 1)), validate=True)
            if f"{zlib.crc32(packed):08x}" != crc:
                raise ValueError("the checksum differs")
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, MOST_UNPACKED_BYTES)
            if unpacker.unconsumed_tail:
                raise ValueError(f"it has more than {MOST_UNPACKED_BYTES} bytes")
            reports.append(parsed(text))
        except (ValueError, RecursionError, zlib.error) as error:
            raise ValueError(f"report {crc}: damaged in the log: {error}") from None
    return reports


def write_json(path: Path, data: dict, indent: int | None = 1) -> None:
    """Write the whole file to the disk or nothing: readers poll for it, and the collector acknowledges it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_plain(path, (to_json(data, indent) + "\n").encode(), sync=True)


def to_json(data: dict, indent: int | None) -> str:
    """JSON has no NaN: a number that is not finite, or above LARGEST_NUMBER, is null."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < LARGEST_NUMBER else value  # NaN is not below either
