"""The report of a run: JSON for programs, one page with a plot for people."""

from __future__ import annotations

import html
import json
import time
from pathlib import Path

from gpuworker.runtime import svg_plot
from gpuworker.train import throughput
from gpuworker.train.distributed import host
from gpuworker.train.trainer import Trainer

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 52em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em 1em .2em 0; text-align: left; font-weight: normal }}
td {{ font-variant-numeric: tabular-nums }} h2 {{ font-size: 1.1em }}
{plot_style}</style>
<h1>{title}</h1>
<table>{summary}</table>
<h2>Loss</h2>
{plot}
<h2>Parameters</h2>
<table>{parameters}</table>
</html>
"""


def parameters(trainer: Trainer) -> dict[str, object]:
    """For people and trackers: the flags, and what follows from them."""
    hidden = ("upload", "cache", "tracker_required", "tracker_timeout", "trackers")
    flags = {name: value for name, value in vars(trainer.args).items() if name not in hidden}
    follows = {
        "world_size": trainer.world.size,
        "samples": trainer.samples,
        "samples_a_step": trainer.shape.step,
        "parameters": sum(each.numel() for each in trainer.engine.plain.parameters()),
    }
    return {**flags, **follows}


def collect(trainer: Trainer, status: str) -> dict:
    """Everything about the run so far. Collective."""
    progress, world = trainer.progress, trainer.world
    rank = {"rank": world.rank, "node": world.node, "host": host(), "device": str(world.device)}
    used = {"cpu_seconds": time.process_time(), "peak_memory_bytes": throughput.peak_memory(world.device)}
    ranks = world.gather({**rank, **used})
    last = progress.evaluations[-1] if progress.evaluations else {}
    rate = progress.tokens / progress.seconds if progress.seconds else 0.0
    validation = {"val_loss": last["loss"], "val_perplexity": last["perplexity"]} if last else {}
    return {
        "status": status,
        "run": trainer.args.run,
        "world_size": world.size,
        "tokens_total": progress.tokens,
        "elapsed_sec": progress.seconds,
        "tokens_per_sec": rate,
        "summary": {"step": progress.step, "tokens_per_s": rate, **validation},
        "parameters": parameters(trainer),
        "attempts": progress.attempts,
        "history": progress.history,
        "evaluations": progress.evaluations,
        "ranks": ranks,
    }


def write(result: dict, path: Path) -> list[Path]:
    """`path` and, beside it, the page; give both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    page = path.with_suffix(".html")
    page.write_text(render(result))
    return [path, page]


def render(result: dict) -> str:
    last = result["evaluations"][-1] if result["evaluations"] else None
    summary = {
        "status": result["status"],
        "ranks": result["world_size"],
        "steps": result["summary"]["step"],
        "tokens": f"{result['tokens_total']:,}",
        "training time": throughput.duration(result["elapsed_sec"]),
        "tokens a second": f"{result['tokens_per_sec']:,.0f}",
        "attempts": result["attempts"],
        "peak memory of a rank": f"{max(rank['peak_memory_bytes'] for rank in result['ranks']) / 2**30:.2f} GiB",
    }
    if last:
        summary |= {"validation loss": f"{last['loss']:.4f}", "perplexity": f"{last['perplexity']:.3f}"}
    curves = {
        "training": [(entry["step"], entry["loss"]) for entry in result["history"]],
        "validation": [(entry["step"], entry["loss"]) for entry in result["evaluations"]],
    }
    return PAGE.format(
        title=html.escape(f"Training {result['run']}"),
        plot_style=svg_plot.STYLE,
        summary=table(summary),
        plot=svg_plot.line_plot(curves, "step", "loss"),
        parameters=table(result["parameters"]),
    )


def table(facts: dict) -> str:
    rows = (f"<tr><th>{html.escape(str(key))}<td>{html.escape(str(value))}" for key, value in facts.items())
    return "\n".join(rows)
