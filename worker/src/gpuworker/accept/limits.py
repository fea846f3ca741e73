"""Limits: shares of the GPU model's figures or of a derived ceiling; those of the user override.

A limit above the hardware maximum fails every node, and one far below it passes every node. Both
are refused.
"""

from __future__ import annotations

import argparse
import json
import math
import re
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
        derived: tuple[float, str] | None = None,
    ) -> Threshold:
        """Threshold of a measurement. `derived`: (ceiling, origin) that the check derived from
        the hardware.
        """
        key = measure.limit or name
        rule, figures = RULES.get(key, {}), self.figures(key, device)
        derived = derived or _ceiling_figure(rule, self._model(device))
        ceiling = derived[0] if derived else figures.get("specification")
        for wanted in (name, key):
            if wanted in self.user:
                return Threshold(self.user[wanted], None, ceiling, f"limits.{wanted}")
        if measure.limit is None:
            return Threshold(ceiling=ceiling)
        if "fixed" in rule:
            return Threshold(
                rule["fixed"].get("fail"), rule["fixed"].get("warn"), None, rule["source"]
            )
        if derived and "derived" in rule:
            return _share(rule["derived"], derived[0], ceiling, derived[1])
        for kind in KINDS:
            if kind in figures and kind in rule:
                origin = f"{kind} figure of {figures['model']}: {figures['source']}"
                return _share(rule[kind], figures[kind], ceiling, origin)
        if not self.models:
            return Threshold(source="none: a CPU rehearsal")
        words = f"no figure for {self._model(device) or 'these GPUs'}; only compared with the fleet"
        return Threshold(source=f"none: {words}", no_figure=words)

    def _model(self, device: str) -> str:
        """The GPU model of a device; of several devices, or of the node, only if all are of one
        model.
        """
        indices = [int(index) for index in re.findall(r"cuda:(\d+)", device)]
        names = {self.models[index] for index in indices if index < len(self.models)} or set(
            self.models
        )
        return names.pop() if len(names) == 1 else ""


def problems(user: dict[str, float], models: tuple[str, ...] = ()) -> dict[str, str]:
    """Refused limits with the reason, by key: no node could pass, or every node would.

    Without models (a rehearsal), of numbers with figures only limits above all known GPUs are
    refused.
    """
    found, measures = {}, _measures() if user else {}
    for name, value in user.items():
        measure = measures.get(name)
        key = measure.limit or name if measure else name
        known = _ceilings(key, [model for model in dict.fromkeys(models) if gpu_specs.entry(model)])
        ceilings = known or _ceilings(key, [entry["model"] for entry in gpu_specs.MODELS])
        if not (math.isfinite(value) and value > 0):
            found[name] = f"is {value:g}: a limit is a positive number"
        elif ceilings:
            least, most = (extreme(ceilings, key=ceilings.get) for extreme in (min, max))
            can, unit = (least if known else most), RULES[key]["unit"]
            if value > ceilings[can]:
                found[name] = (
                    f"is {value:g} {unit}, but {can} can do {ceilings[can]:g} at most: no node can pass"
                )
            elif known and value < LEAST_SHARE * ceilings[most]:
                share = f"{LEAST_SHARE:.0%} of the {ceilings[most]:g} of {most}"
                found[name] = f"is {value:g} {unit}, less than {share}: any node would pass"
        elif measure and not measure.meaningful[0] <= value <= measure.meaningful[1]:
            least, most = measure.meaningful
            beyond = f"less than {least:g}" if value < least else f"more than {most:g}"
            none = (value > most) == (measure.better == "higher")
            found[name] = (
                f"is {value:g} {measure.unit}, {beyond}: {'no node can' if none else 'any node would'} pass"
            )
    return {key: f"limits.{key} {text}" for key, text in found.items()}


def _measures() -> dict[str, Measure]:
    """The numbers of all checks of a node, by name and by the key of their limit."""
    from gpuworker.accept import registry

    found = [
        item for check in registry.node_checks().values() for item in check.spec.measures.items()
    ]
    return {measure.limit: measure for _, measure in found if measure.limit} | dict(found)


def _ceiling_figure(rule: dict, model: str) -> tuple[float, str] | None:
    """The ceiling of a rule that refers to another figure of the model, for example of a link to
    the NVLink rate.
    """
    figures = gpu_specs.figures(rule.get("ceiling", {}).get("figure", ""), model)
    if not figures:
        return None
    return figures[
        "specification"
    ], f"{rule['ceiling']['figure']} of {figures['model']}: {figures['source']}"


def _ceilings(key: str, models: list[str]) -> dict[str, float]:
    """Known hardware maxima of a limit `key`, by model."""
    rule, found = RULES.get(key, {}), {}
    for model in models:
        if figures := gpu_specs.figures(key, model):
            found[figures["model"]] = figures["specification"]
        elif derived := _ceiling_figure(rule, model):
            found[gpu_specs.entry(model)["model"]] = derived[0] * rule["ceiling"].get("times", 1)
    return found


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
