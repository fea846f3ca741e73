"""Wording of the training programs: errors and flags, as golden file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from test_train_checkpoint import CORRUPTIONS, make_checkpointer
from test_train_data import BAD_LINES, template, write_with_bad_line
from test_train_model import BROKEN_MODELS, make_model

from gpuworker.train import checkpoint_files, dataset, model_files, train_framework, train_smoke, upload
from gpuworker.train.trackers import settings
from tests.helpers import golden


def error_of(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except (ValueError, OSError) as error:
        return str(error)
    return "accepted"


def messages(folder: Path) -> dict[str, str]:
    """Name of a mistake -> message."""
    found = {}
    for name, (line, _) in BAD_LINES.items():
        path = write_with_bad_line(folder / "data.jsonl", line)
        found[f"data, {name}"] = error_of(lambda path=path: list(dataset.read_documents([path], 0, 1, template)))
    talk = {"messages": [{"role": "user", "content": "a"}]}
    found["data, no chat template"] = error_of(dataset.segments, talk, None)
    for name, (damage, _) in BROKEN_MODELS.items():
        made = make_model(folder / name.replace(" ", "-") / "model")
        damage(made)
        check = model_files.check_tokenizer if name == "no tokenizer" else model_files.check_model
        found[f"model, {name}"] = error_of(check, made)
    for name, (corrupt, _) in CORRUPTIONS.items():
        made = make_checkpointer(folder / name.replace(" ", "-")).folder / "epoch-0001-step-00000010"
        corrupt(made)
        found[f"checkpoint, {name}"] = error_of(checkpoint_files.load, made)
    for run_id in ("20261121", "LLM-12", "a/b"):
        found[f"tracker, run id {run_id}"] = error_of(settings.check_run_id, run_id, "PLUTO_RUN_ID")
    for name, environment in {"pluto": {}, "mlflow": {}, "mlflow in a folder": {"MLFLOW_TRACKING_URI": "/x"}}.items():
        found[f"tracker, {name}"] = error_of(settings.check, name.split()[0], environment)
    found["tracker, unknown"] = error_of(settings.selected, "wandb", {})
    found["upload"] = error_of(upload.parse_command, "s5cmd sync")
    return {name: text.replace(str(folder), "FOLDER") for name, text in found.items()}


def flags(parser: argparse.ArgumentParser) -> str:
    return "\n".join(f"{action.option_strings[-1]}: {action.help}" for action in parser._actions)


def test_the_wording_of_errors_and_flags_is_that_of_the_golden_file(tmp_path, monkeypatch):
    monkeypatch.delenv("RUN_ID", raising=False)
    sections = [f"=== {name}\n{text}\n" for name, text in messages(tmp_path).items()]
    for name, parser in {
        "train.py": train_smoke.make_parser(),
        "train_framework.py": train_framework.make_parser(),
    }.items():
        sections.append(f"=== flags of {name}\n{flags(parser)}\n")
    golden.check("train.txt", "\n".join(sections))
