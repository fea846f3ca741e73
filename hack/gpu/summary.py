"""The summary of the GPU pack: summary.json for programs and summary.md for people."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

from hack.gpu.step import OK, Result

# Our step and number, and those of the peer that does the same work.
PAIRS = [
    *(
        ("accept-quick-1", f"gemm_{kind}", "peer-gemm", f"gemm_{kind}")
        for kind in ("fp32", "tf32", "bf16", "fp16")
    ),
    ("train-gpt-ddp", "tokens_per_s", "peer-gpt", "tokens_per_s"),
    ("train-gpt-ddp-compiled", "tokens_per_s", "peer-gpt-compiled", "tokens_per_s"),
    ("train-gpt-ddp", "peak_memory", "peer-gpt", "peak_memory"),
]


def write(results: list[Result], expected: int, out: Path) -> None:
    """Write both forms. `expected`: number of all steps, of which `results` may have some only."""
    compared = pairs(results)
    whole = {"machine": machine(results), "counts": counts(results, expected), "comparisons": compared,
             "steps": [dataclasses.asdict(result) for result in results]}  # fmt: skip
    for name, text in (
        ("summary.json", json.dumps(whole, indent=1) + "\n"),
        ("summary.md", markdown(results, whole)),
    ):
        partial = out / f"{name}.partial"
        partial.write_text(text)
        partial.rename(out / name)


def machine(results: list[Result]) -> str:
    return next((result.why for result in results if result.name == "machine"), "unknown")


def counts(results: list[Result], expected: int) -> dict[str, int]:
    found = Counter(result.result for result in results)
    return {**found, "seconds": round(sum(result.seconds for result in results)), "steps": expected}


def pairs(results: list[Result]) -> list[dict]:
    values = {
        (result.name, figure.name): figure
        for result in reversed(results)
        for figure in reversed(result.figures)
    }
    return [
        {"step": step, "number": name, "value": values[step, name].value, "peer": peer, "unit": values[step, name].unit,
         "peer_value": values[peer, other].value, "ratio": values[step, name].value / values[peer, other].value}
        for step, name, peer, other in PAIRS
        if (step, name) in values and (peer, other) in values
    ]  # fmt: skip


def markdown(results: list[Result], whole: dict) -> str:
    lines = [
        "# GPU pack",
        "",
        whole["machine"],
        "",
        ", ".join(f"{key}: {n}" for key, n in whole["counts"].items()),
        "",
    ]
    lines += table(
        ["step", "result", "exit code", "s", "limit, s", "why"],
        [[each.name, each.result if each.result == OK else f"**{each.result}**",
          "" if each.exit_code is None else each.exit_code, each.seconds, round(each.limit_s), each.why]
         for each in results],
    )  # fmt: skip
    lines += ["", "## Beside peers", "", "Memory: less is better."]
    lines += table(
        ["ours", "number", "value", "peer", "value", "ours ÷ peer"],
        [[each["step"], f"{each['number']}, {each['unit']}", f"{each['value']:.4g}", each["peer"],
          f"{each['peer_value']:.4g}", f"{each['ratio']:.3f}"] for each in whole["comparisons"]],
    )  # fmt: skip
    lines += ["", "## Numbers"]
    lines += table(
        ["step", "number", "device", "value", "unit", "FAIL below", "WARN below"],
        [[each.name, figure.name, figure.device, f"{figure.value:.4g}", figure.unit,
          *("" if limit is None else f"{limit:.4g}" for limit in (figure.limit, figure.warn_limit))]
         for each in results for figure in each.figures],
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return ["", *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])]
