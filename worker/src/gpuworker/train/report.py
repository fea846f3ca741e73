"""Report of a training run: JSON for programs, and an HTML page with a plot."""

from __future__ import annotations

import errno
import html
import json
import os
import time
from pathlib import Path

from gpuworker.runtime import svg_plot
from gpuworker.train import throughput
from gpuworker.train.distributed import host_name
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


JSON_START = '{\n "status": '


def run_parameters(trainer: Trainer) -> dict[str, object]:
    """The options of the run and what follows from them, for the report and the trackers.

    If the run was done before this attempt, the options that count are those that trained the run.
    """
    hidden = ("upload", "cache", "tracker_required", "tracker_timeout", "trackers")
    options = {name: value for name, value in vars(trainer.args).items() if name not in hidden}
    derived = {
        "world_size": trainer.context.world_size,
        "samples": trainer.samples,
        "parameters": trainer.parameter_count(),
    }
    state = trainer.state
    done = state.settings[-1] if state.settings and trainer.schedule.is_done(state) else {}
    found = {**options, **derived, **done}
    found.pop("from_step", None)
    found["samples_per_step"] = int(found["batch"]) * int(found["accumulate"]) * int(found["world_size"])
    return found


def collect(trainer: Trainer, status: str) -> dict:
    """Report of the run so far. Collective."""
    state, context = trainer.state, trainer.context
    rank = {"rank": context.rank, "node": context.node_rank, "host": host_name(), "device": str(context.device)}
    used = {"cpu_seconds": time.process_time(), "peak_memory_bytes": throughput.peak_memory(context.device)}
    ranks = context.all_gather_object({**rank, **used})
    last = state.evaluations[-1] if state.evaluations else {}
    tokens_per_s = state.tokens / state.seconds if state.seconds else 0.0
    validation = {"val_loss": last["loss"], "val_perplexity": last["perplexity"]} if last else {}
    return {
        "status": status,
        "run": trainer.args.run,
        "world_size": context.world_size,
        "tokens_total": state.tokens,
        "elapsed_sec": state.seconds,
        "tokens_per_sec": tokens_per_s,
        "summary": {"step": state.step, "tokens_per_s": tokens_per_s, **validation},
        "parameters": run_parameters(trainer),
        "attempts": state.attempts,
        "skipped_steps": state.skipped[0],
        "settings": state.settings,
        "history": state.history,
        "evaluations": [{name: entry[name] for name in entry if name != "time"} for entry in state.evaluations],
        "ranks": ranks,
    }


def check_writable(path: Path) -> None:
    """Raise OSError unless `write` can write to `path`, and would replace nothing but a report. Leaves no file."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, start in ((path, JSON_START), (path.with_suffix(".html"), PAGE[:15])):
        exists = target.exists()
        if target.is_file() and target.stat().st_size and not starts_with(target, start):
            raise FileExistsError(errno.EEXIST, "it would replace a file that is not a report", str(target))
        target.open("ab").close()
        if not exists:
            target.unlink()


def starts_with(path: Path, text: str) -> bool:
    with path.open("rb") as file:
        return file.read(len(text)) == text.encode()


def write(result: dict, path: Path) -> list[Path]:
    """Write the report to `path` and the page next to it. Returns both paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    page = path.with_suffix(".html")
    page.write_text(render(result), encoding="utf-8")
    return [path, page]


def render(result: dict) -> str:
    last = result["evaluations"][-1] if result["evaluations"] else None
    summary = {
        "status": result["status"],
        "ranks": result["world_size"],
        "steps": result["summary"]["step"],
        "tokens": f"{result['tokens_total']:,}",
        "training time": throughput.format_duration(result["elapsed_sec"]),
        "tokens per second": f"{result['tokens_per_sec']:,.0f}",
        "attempts": result["attempts"],
        "peak memory per rank": f"{max(rank['peak_memory_bytes'] for rank in result['ranks']) / 2**30:.2f} GiB",
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
