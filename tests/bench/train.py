"""train_framework.py side by side with transformers' Trainer and a plain loop: python -m tests.bench.train [ROUNDS].

The same model, samples, batch, optimizer and number of steps, each in a process of its own. The programs take turns, so
that other load affects all of them. Prints tokens per second of the late steps, peak memory, and ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[2]
BATCH, LENGTH, STEPS = 8, 128, 40
MODEL = {
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "max_position_embeddings": LENGTH,
}  # 4.9 million parameters
SETTINGS = ["optim=adamw_torch_fused", "lr_scheduler_type=constant"]


def ours(folder: Path):
    from hack.gpu import training

    training.MODELS["bench"] = ("gpt2", MODEL)
    return training.train(folder, "bench", LENGTH, BATCH, STEPS, SETTINGS)


def rows(folder: Path):
    """Model and samples, as `ours` has them."""
    import torch
    from transformers import AutoModelForCausalLM

    from hack import small_models

    model = AutoModelForCausalLM.from_pretrained(small_models.make(folder / "model", "gpt2", **MODEL))
    return model, torch.randint(97, 123, (BATCH * STEPS, LENGTH))


def trainer(folder: Path):
    from transformers import Trainer, TrainingArguments

    from hack.gpu.training import Clock

    (model, samples), clock = rows(folder), Clock()
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=1e-3,
        lr_scheduler_type="constant", optim="adamw_torch_fused", use_cpu=True, logging_steps=1, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in samples]
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock]).train()
    return clock


def plain(folder: Path):
    import torch

    from hack.gpu.training import Clock

    (model, samples), clock = rows(folder), Clock()
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    for batch in samples.split(BATCH):
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.ends.append(time.perf_counter())
    return clock


PROGRAMS = {"train_framework.py": ours, "transformers.Trainer": trainer, "plain loop": plain}


def one(name: str) -> None:
    """Run one program in this process, and print its figures as the last line."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds = PROGRAMS[name](Path(folder)).seconds()
    from hack.gpu.training import peak_memory

    print(json.dumps([BATCH * LENGTH / seconds, peak_memory() / 1e6]))


def compare(rounds: int) -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in PROGRAMS}
    paths = {"PYTHONPATH": f"{REPO}:{REPO / 'worker/src'}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for number in range(rounds):
        names = [*PROGRAMS][number % 3 :] + [*PROGRAMS][: number % 3]  # each round starts with another program
        for name in names:
            command = [sys.executable, "-m", "tests.bench.train", "--one", name]
            done = subprocess.run(command, env={**os.environ, **paths}, cwd=REPO, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{BATCH} × {LENGTH} tokens per step, medians of {rounds} rounds in turns.\n")
    print("| program | tokens/s | peak memory, MB | train_framework.py ÷ this | lowest to highest |")
    print("|---|---|---|---|---|")
    for name, runs in found.items():
        ratios = [own[0] / other[0] for own, other in zip(found["train_framework.py"], runs, strict=True)]
        rate, memory = (statistics.median(run[index] for run in runs) for index in range(2))
        middle = f"{statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f}"
        print(f"| {name} | {rate:.0f} | {memory:.0f} | {middle} |")


if __name__ == "__main__":
    one(sys.argv[2]) if sys.argv[1:2] == ["--one"] else compare(int(sys.argv[1]) if sys.argv[1:] else 5)
