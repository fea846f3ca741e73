"""train_framework.py on a new model, with the time of its steps.

Every sample has the full length, so that no token is padding. The first half of the steps, which
compile and allocate, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

import torch
import transformers

from gpuworker.train import train_framework
from hack import small_models

GPT = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
       "activation_function": "gelu_pytorch_tanh"}  # fmt: skip
LLAMA = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 8192, "tie_word_embeddings": True}  # fmt: skip
# GPT-2 small, and Llama 3.2 1B without its vocabulary.
MODELS = {
    "gpt": ("gpt2", GPT),
    "llama": ("llama", LLAMA),
    "gpt-small": ("gpt2", {}),
    "llama-small": ("llama", {}),
}


class Clock(transformers.TrainerCallback):
    """Times of the ends of all steps, and the losses."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, args, state, control, **_) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **_) -> None:
        self.losses += [float(logs["loss"])] if "loss" in logs else []

    def seconds(self) -> float:
        """Mean of the late steps."""
        late = self.ends[len(self.ends) // 2 :]
        return (late[-1] - late[0]) / (len(late) - 1)


def train(
    folder: Path, model: str, length: int, batch: int, steps: int, settings: list[str]
) -> Clock:
    """`batch`: samples per step and rank. Raises RuntimeError unless the program ends with 0."""
    kind, sizes = MODELS[model]
    sizes = {**sizes, "max_position_embeddings": length}
    made = small_models.make(folder / f"model-{os.environ.get('RANK', 0)}", kind, **sizes)
    world = int(os.environ.get("WORLD_SIZE", 1))
    data = folder / "data.jsonl"
    text = "".join(chr(97 + (7 * number + number // 26) % 26) for number in range(length - 1))
    if int(os.environ.get("RANK", 0)) == 0:
        data.with_suffix(".new").write_text(
            (json.dumps({"text": text}) + "\n") * (batch * world * steps)
        )
        data.with_suffix(".new").rename(data)
    while not data.exists():
        time.sleep(0.1)
    clock = Clock()
    init = train_framework.Trainer.__init__

    def with_clock(self, *args, callbacks, **more):
        init(self, *args, callbacks=[clock, *callbacks], **more)

    train_framework.Trainer.__init__ = with_clock
    words = ["--model-local-dir", made, "--data", data, "--output", folder, "--batch", batch * world, "--lr", 1e-3,
             "--seq-len", length, "--set", "save_strategy=no", "--set", "logging_steps=1"]  # fmt: skip
    words += [word for setting in settings for word in ("--set", setting)]
    if code := train_framework.main([*map(str, words)]):
        raise RuntimeError(f"train_framework.py ended with {code}")
    return clock


def peak_memory() -> int:
    """Bytes: of the GPU's allocator, or of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    for name in ("length", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    clock = train(args.folder, args.model, args.length, args.batch, args.steps, args.set)
    if int(os.environ.get("RANK", 0)) == 0:
        tokens = args.length * args.batch * int(os.environ.get("WORLD_SIZE", 1))
        figures = [
            {"name": "tokens_per_s", "value": tokens / clock.seconds(), "unit": "tokens/s"},
            {"name": "peak_memory", "value": peak_memory() / 2**30, "unit": "GiB"},
        ]
        note = f"loss {clock.losses[0]:.3f} to {clock.losses[-1]:.3f}"
        (args.folder / "figures.json").write_text(json.dumps({"figures": figures, "note": note}))


if __name__ == "__main__":
    main()
