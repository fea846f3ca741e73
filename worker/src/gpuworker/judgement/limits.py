"""Limits: which share of a figure of the hardware is still healthy; limits of the user override.

A limit above the hardware maximum fails every node, and one far below it passes every node. Both
are refused. The figures of the GPU models are in runtime/gpu_specs.yaml.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuworker.judgement.check_spec import Measure
from gpuworker.runtime import gpu_specs

# Figures of a model, of which the first that it has counts: what healthy GPUs sustain while all of
# the node are loaded, the best result of a tuned loop on one GPU alone ("MAMF" in ml-engineering),
# what one user measured on one GPU, and the data sheet, dense, which is the ceiling too.
KINDS = ("sustained", "best", "observed", "specification")
UNLISTED = 2  # times the best listed model: more cannot be
LEAST_SHARE = 0.2  # of the ceiling; a lower limit passes every node


@dataclass(frozen=True)
class Rule:
    """`shares`: those below which a check fails and warns, by the kind of figure. Of "derived" it
    is a ceiling that the check derives from what is installed, else `ceiling`; "fixed" are no
    shares, but the limits themselves.

    `ceiling`: the figure of a model that bounds the number, by default its own, `times` which a
    limit may be.
    """

    unit: str
    source: str
    shares: dict[str, tuple[float | None, float | None]]
    ceiling: str = ""
    times: float = 1


GEMM = Rule(
    "TFLOP/s",
    "healthy GPUs of one model differ by 5 % and more (ml-engineering)",
    {
        "sustained": (0.85, 0.90),
        # one GPU alone is about a tenth faster than under a loaded node (H100: 794 against 690)
        "best": (0.75, 0.85),
        # not sufficient for a FAIL: GPUs with little power (T4, L4) reach less than half of a data
        # sheet
        "observed": (None, 0.75),
        "specification": (None, 0.60),
    },
)
# A healthy H100 reaches 0.90 of its data sheet with a copy and 0.91 with a triad; DCGM's own triad
# reaches 0.65 to 0.80 of it (diag-skus.yaml.in, 4.6.0), and these are faster.
MEMORY = Rule(
    "GB/s",
    "read plus written bytes; healthy is 0.90 of the data sheet (hack/gpu/results)",
    {"sustained": (0.85, 0.90), "specification": (0.65, 0.75)},
)
# By key. Every limit must lie between 20 % and 100 % of its ceiling: a test holds it.
RULES = {
    "gemm_fp32": GEMM,
    "gemm_tf32": GEMM,
    "gemm_bf16": GEMM,
    # fp16 takes more power: a healthy H100 reached 672 with it where it reached 707 with bf16
    "gemm_fp16": dataclasses.replace(
        GEMM,
        source="best figures of bf16, of which fp16 reaches less (hack/gpu/results)",
        shares=GEMM.shares | {"best": (0.70, 0.80)},
    ),
    "gemm_fp8": GEMM,
    "memory_copy": MEMORY,
    "memory_triad": MEMORY,
    # Healthy is 0.88 on generation 5 (55.4 of 63, nvbandwidth) and 0.83 on 4 (26 of 31.5).
    "host_link": Rule(
        "GB/s",
        "of the PCIe rate, one way; Azure asks for 48 of 63 (azurehpc-health-checks, H100 v5)",
        {"derived": (0.70, 0.76)},
        "pcie_x16",
    ),
    # Healthy is 0.82 to 0.88 (371 of 450 on H100, nccl issue 1264; 396.4 on H200, nvbandwidth).
    "peer_link": Rule(
        "GB/s",
        "of the one-way NVLink rate; Azure asks for 335 of 450 (azurehpc-health-checks, H100 v5)",
        {"derived": (0.74, 0.77)},
        "nvlink_oneway",
    ),
    # The one-way NVLink rate bounds a ring. With NVLS a reading may reach 1.07 of it (480 of 450).
    "busbw_node": Rule(
        "GB/s",
        "healthy is 0.77 to 0.83, A100 to H200 (azurehpc-health-checks, nccl-tests issue 212)",
        {"derived": (0.72, 0.76)},
        "nvlink_oneway",
        1.07,
    ),
    # Of min(one-way NVLink, sum of the node's NICs). Published healthy systems reach 0.84 to 0.96
    # of it (validation results of NVIDIA cluster-readiness-engine, coreweave/nccl-tests).
    "busbw_fabric": Rule(
        "GB/s",
        "thresholds in use are 0.60 to 0.93 (Google cluster-health-scanner, oci-hpc)",
        {"derived": (0.80, 0.90)},
    ),
    "loss_drop": Rule(
        "x", "the last loss must be below 0.7 × the first", {"fixed": (1.4286, None)}
    ),
}
NO_RULE = Rule("", "", {})


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
        rule, known = RULES.get(key, NO_RULE), _ceiling(key, model)
        slot = rule.ceiling != "nvlink_oneway"
        known = claimed if claimed and (slot or not known) else known
        ceiling, origin = known or (None, "")
        for wanted in (name, key):
            if wanted in self.user:
                return Threshold(self.user[wanted], None, ceiling, f"limits.{wanted}")
        if measure.limit is None:
            return Threshold(measure.fail, ceiling=ceiling)
        if "fixed" in rule.shares:
            return Threshold(*rule.shares["fixed"], source=rule.source)
        if known and "derived" in rule.shares:
            return _share(rule.shares["derived"], ceiling, ceiling, origin)
        figures = gpu_specs.figures(key, model)
        for kind in KINDS:
            if kind in figures and kind in rule.shares:
                origin = f"{kind} figure of {figures['model']}: {figures['source']}"
                return _share(rule.shares[kind], figures[kind], ceiling, origin)
        if not self.models:
            return Threshold(source="none: a CPU rehearsal")
        words = f"no figure for {model or 'these GPUs'}; only compared with the fleet"
        return Threshold(ceiling=_of_unlisted(key), source=f"none: {words}", no_figure=words)

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
    times = RULES.get(key, NO_RULE).times

    def ceilings(names: Iterable[str]) -> list[float]:
        return [times * known[0] for model in names if (known := _ceiling(key, model))]

    if present := ceilings(models):
        return LEAST_SHARE * max(present), min(present)
    if all_ := ceilings(entry["model"] for entry in gpu_specs.MODELS):
        return 0, max(all_)
    return measure.meaningful if measure else (0, math.inf)


def _measures() -> dict[str, Measure]:
    """The numbers of all checks of a node, by name and by the key of their limit."""
    from gpuworker.judgement import registry

    found = [item for check in registry.node_checks().values() for item in check.measures.items()]
    return {measure.limit: measure for _, measure in found if measure.limit} | dict(found)


def _ceiling(key: str, model: str) -> tuple[float, str] | None:
    """What a model can do at most, by the figure that the rule names, and its source."""
    figure = RULES.get(key, NO_RULE).ceiling or key
    found = gpu_specs.figures(figure, model)
    origin = f"{figure} of {found['model']}: {found['source']}" if found else ""
    return (found["specification"], origin) if found else None


@functools.cache
def _of_unlisted(key: str) -> float | None:
    """What no model can do, listed or not."""
    every = [known[0] for entry in gpu_specs.MODELS if (known := _ceiling(key, entry["model"]))]
    return UNLISTED * max(every) if every else None


def _share(
    shares: tuple[float | None, float | None], figure: float, ceiling: float | None, origin: str
) -> Threshold:
    fail, warn = shares
    words = [f"{fail:g} × {figure:g}"] if fail else []
    if warn:
        words.append(f"{'WARN at ' * bool(fail)}{warn:g} × {figure:g}")
    limits = (share and share * figure for share in shares)
    return Threshold(*limits, ceiling, f"{', '.join(words)}, {origin}")


def key_and_number(word: str) -> tuple[str, float]:
    """For argparse: `gemm_bf16=700`."""
    key, _, value = word.partition("=")
    try:
        return key, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{word}: write it as KEY=NUMBER, for example gemm_bf16=700"
        ) from None
