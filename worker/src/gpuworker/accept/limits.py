"""Limits: figures of the GPU model (limits.yaml), ceilings of what is installed, and what the user sets.

The user's limit wins over all. A limit above what the hardware can do fails every node, and one far below it passes
any: `lint` refuses both.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.accept.registry import Measure

LEAST_SHARE = 0.2  # of the ceiling; a lower limit passes everything


@dataclass(frozen=True)
class Threshold:
    """Below `fail` a check fails, below `warn` it warns (above them where lower is better)."""

    fail: float | None = None
    warn: float | None = None
    ceiling: float | None = None
    source: str = "none: informational"


@dataclass(frozen=True)
class Limits:
    """`models`: the name that torch gives for each GPU by index; empty on the CPU. `user`: limits by key."""

    models: tuple[str, ...] = ()
    user: dict[str, float] = field(default_factory=dict)

    def figures(self, key: str, device: str = "") -> dict:
        """{"specification": …, "best": …, "sustained": …, "source": …, "model": …} as far as known, else {}."""
        entry = _entry(self._model(device))
        return {**entry[key], "model": entry["model"]} if entry and key in entry else {}

    def threshold(
        self, name: str, measure: Measure, device: str = "", derived: tuple[float, str] | None = None
    ) -> Threshold:
        """What a value is judged by; `derived` is the ceiling that the check derived, with its origin."""
        key = measure.limit or name
        rule, figures = TABLE["rules"].get(key, {}), self.figures(key, device)
        ceiling = derived[0] if derived else figures.get("specification")
        if key in self.user:
            return Threshold(self.user[key], None, ceiling, f"limits.{key}")
        if measure.limit is None:
            return Threshold(ceiling=ceiling)
        if derived and "derived" in rule:
            return _share(rule["derived"], derived[0], derived[0], derived[1])
        if "fixed" in rule:
            return Threshold(rule["fixed"].get("fail"), rule["fixed"].get("warn"), None, rule["source"])
        for kind in ("sustained", "best", "specification"):
            if kind in figures and kind in rule:
                origin = f"{kind} figure of {figures['model']}: {figures['source']}"
                return _share(rule[kind], figures[kind], ceiling, origin)
        if not self.models:
            return Threshold(source="none: a CPU rehearsal")
        return Threshold(source=f"none: no figure for {self._model(device) or 'mixed GPUs'}; the fleet judges")

    def _model(self, device: str) -> str:
        """The GPU that a device name speaks of; several devices, or a whole node, only if all are of one model."""
        indices = [int(index) for index in re.findall(r"cuda:(\d+)", device)]
        names = {self.models[index] for index in indices if index < len(self.models)} or set(self.models)
        return names.pop() if len(names) == 1 else ""


def _share(shares: dict, figure: float, ceiling: float | None, origin: str) -> Threshold:
    fail, warn = (figure * shares[kind] if kind in shares else None for kind in ("fail", "warn"))
    share = shares.get("fail", shares.get("warn"))
    return Threshold(fail, warn, ceiling, f"{share:g} × {figure:g}, {origin}")


def _entry(model: str) -> dict | None:
    return next((entry for entry in TABLE["models"] if model and re.search(entry["match"], model)), None)


TABLE = json.loads(Path(__file__).with_name("limits.json").read_text())
