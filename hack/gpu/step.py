"""A step of the GPU pack: a Python command with its time limit, and the judgement of what it left."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

OK, NOT_OK, NOT_APPLICABLE, NOT_RUN = "ok", "not ok", "not applicable", "not run"


@dataclass(frozen=True)
class Figure:
    """A number that a step measured. `limit`: FAIL below it, `warn_limit`: WARN below it, where one
    exists.
    """

    name: str
    value: float
    unit: str
    device: str = ""
    limit: float | None = None
    warn_limit: float | None = None


@dataclass(frozen=True)
class Judgement:
    result: str
    why: str = ""
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """`arguments` of Python, in which {folder} is the step's folder and {out} that of all steps.
    `seconds`: expected on an H100. `judge` gets the folder and the exit code, which is negative for
    a signal.
    """

    name: str
    arguments: tuple[str, ...]
    judge: Callable[[Path, int], Judgement]
    seconds: float
    environment: dict[str, str] = field(default_factory=dict)
    alone: bool = True  # False: others like it may run at the same time

    @property
    def limit_s(self) -> float:
        return 2 * self.seconds + 30


@dataclass
class Result:
    """What became of a step. Only a step that ended by itself or by its own limit is not repeated."""

    name: str
    result: str
    why: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    limit_s: float = 0.0
    timed_out: bool = False
    command: str = ""
    figures: list[Figure] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write `result.json` as a whole or not at all."""
        partial = folder / "result.json.partial"
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        partial.rename(folder / "result.json")


def read(folder: Path) -> Result | None:
    """The result of an earlier run of the step, None without a readable and complete one."""
    try:
        found = json.loads((folder / "result.json").read_text())
        result = Result(**{**found, "figures": [Figure(**figure) for figure in found["figures"]]})
        stored = result.result in (OK, NOT_OK, NOT_APPLICABLE) and result.name == folder.name
        return result if stored and math.isfinite(result.seconds) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
