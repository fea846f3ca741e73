"""Limits: shares of the GPU model's figures or of a derived ceiling; those of the user override.

A limit above the hardware maximum fails every node, and one far below it passes every node. Both
are refused.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.accept.check_spec import Measure
from gpuworker.runtime import gpu_specs

# Generated from limits.yaml, which explains it
RULES = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))
# the first that a model has is judged by
KINDS = ("sustained", "best", "observed", "specification")
LEAST_SHARE = 0.2  # of the ceiling; a lower limit passes every node


@dataclass(frozen=True)
class Threshold:
    """A check fails below `fail` and warns below `warn` (above them where lower is better)."""

    fail: float | None = None
    warn: float | None = None
    ceiling: float | None = None
    source: str = "none: informational"
    no_figure: str = ""  # why the limit of a number that has one is unknown


@dataclass(frozen=True)
class Limits:
    """`models`: the name that torch gives for each GPU, by index; empty on the CPU. `user`:
    limits by key.
    """

    models: tuple[str, ...] = ()
    user: dict[str, float] = field(default_factory=dict)

    def figures(self, key: str, device: str = "") -> dict:
        """Figures of the device's model, as in gpu_specs.figures."""
        return gpu_specs.figures(key, self._model(device))

    def threshold(
        self,
        name: str,
        measure: Measure,
        device: str = "",
        claimed: tuple[float, str] | None = None,
    ) -> Threshold:
        """Threshold of a measurement. `claimed`: (ceiling, origin) by what is installed, such as
        the slot. NVLink is what the model has.
        """
        key, model = measure.limit or name, self._model(device)
        rule, known = RULES.get(key, {}), _ceiling(key, model)
        slot = rule.get("ceiling", {}).get("figure") != "nvlink_oneway"
        known = claimed if claimed and (slot or not known) else known
        ceiling, origin = known or (None, "")
        for wanted in (name, key):
            if wanted in self.user:
                return Threshold(self.user[wanted], None, ceiling, f"limits.{wanted}")
        if measure.limit is None:
            return Threshold(measure.fail, ceiling=ceiling)
        if "fixed" in rule:
            return Threshold(**rule["fixed"], source=rule["source"])
        if known and "derived" in rule:
            return _share(rule["derived"], ceiling, ceiling, origin)
        figures = gpu_specs.figures(key, model)
        for kind in KINDS:
            if kind in figures and kind in rule:
                origin = f"{kind} figure of {figures['model']}: {figures['source']}"
                return _share(rule[kind], figures[kind], ceiling, origin)
        if not self.models:
            return Threshold(source="none: a CPU rehearsal")
        words = f"no figure for {model or 'these GPUs'}; only compared with the fleet"
        return Threshold(source=f"none: {words}", no_figure=words)

    def _model(self, device: str) -> str:
        """The GPU model of a device; of several devices, or of the node, only if all are of one
        model.
        """
        names = set(models_of(device, self.models) or self.models)
        return names.pop() if len(names) == 1 else ""


def models_of(device: str, models: Sequence[str]) -> list[str]:
    """The GPU models of a device, or of both ends of a link."""
    ends = (end.removeprefix("cuda:") for end in device.split("→"))
    return [models[int(end)] for end in ends if end.isdecimal() and int(end) < len(models)]


def problems(user: dict[str, float], models: tuple[str, ...] = ()) -> dict[str, str]:
    """Refused limits with the reason, by key: no node could pass, or every node would.

    Without models (a rehearsal), of numbers with figures only limits above all known GPUs are
    refused.
    """
    found, measures = {}, _measures() if user else {}
    for name, value in user.items():
        least, most = _possible(name, measures.get(name), models)
        if not (math.isfinite(value) and value > 0):
            found[name] = f"limits.{name} is {value:g}: a limit is a positive number"
        elif not least <= value <= most:
            words = f"limits.{name} is {value:g}, possible is {least:g} to {most:g}"
            found[name] = f"{words}: no node can pass, or any node would"
    return found


def _possible(name: str, measure: Measure | None, models: tuple[str, ...]) -> tuple[float, float]:
    """The least and the largest limit that tell nodes apart."""
    key = measure.limit or name if measure else name
    times = RULES.get(key, {}).get("ceiling", {}).get("times", 1)

    def ceilings(names: Iterable[str]) -> list[float]:
        return [times * known[0] for model in names if (known := _ceiling(key, model))]

    if present := ceilings(models):
        return LEAST_SHARE * max(present), min(present)
    if all_ := ceilings(entry["model"] for entry in gpu_specs.MODELS):
        return 0, max(all_)
    return measure.meaningful if measure else (0, math.inf)


def _measures() -> dict[str, Measure]:
    """The numbers of all checks of a node, by name and by the key of their limit."""
    from gpuworker.accept import registry

    found = [
        item for check in registry.node_checks().values() for item in check.spec.measures.items()
    ]
    return {measure.limit: measure for _, measure in found if measure.limit} | dict(found)


def _ceiling(key: str, model: str) -> tuple[float, str] | None:
    """What a model can do at most, by the figure that the rule names, and its source."""
    figure = RULES.get(key, {}).get("ceiling", {}).get("figure", key)
    found = gpu_specs.figures(figure, model)
    origin = f"{figure} of {found['model']}: {found['source']}" if found else ""
    return (found["specification"], origin) if found else None


def _share(shares: dict, figure: float, ceiling: float | None, origin: str) -> Threshold:
    fail, warn = (figure * shares[kind] if kind in shares else None for kind in ("fail", "warn"))
    words = {"fail": "", "warn": "WARN at " if "fail" in shares else ""}
    share = ", ".join(f"{words[kind]}{share:g} × {figure:g}" for kind, share in shares.items())
    return Threshold(fail, warn, ceiling, f"{share}, {origin}")


def key_and_number(word: str) -> tuple[str, float]:
    """For argparse: `gemm_bf16=700`."""
    key, _, value = word.partition("=")
    try:
        return key, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{word}: write it as KEY=NUMBER, for example gemm_bf16=700"
        ) from None
