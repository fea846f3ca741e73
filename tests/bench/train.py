"""Training side by side with Hugging Face's Trainer and accelerate's plain loop: python -m tests.bench.train [ROUNDS].

The same model, data, batch, optimizer and number of steps, each in a separate process. The programs take turns, so that
other load affects all of them. Prints tokens per second of wall-clock and of CPU time without the first steps, peak
memory, and ratios.
Needs requirements/train.txt. THREADS (1), BATCH (8), LENGTH (128), STEPS (40) and BF16 change it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[2]
DATA = REPO / "worker" / "src" / "gpuworker" / "train" / "data" / "train.jsonl"
BATCH, LENGTH, STEPS = (
    int(os.environ.get(name, value)) for name, value in (("BATCH", 8), ("LENGTH", 128), ("STEPS", 40))
)
BF16 = os.environ.get("BF16", "") == "1"
WARM = 5  # warmup steps, not counted
LR = 1e-3
KEYS = ("tokens_per_s", "tokens_per_cpu_s", "peak_memory")
# Large enough that arithmetic dominates, small enough for a CPU: 4.9 million parameters.
SIZE = {"n_layer": 6, "n_embd": 256, "n_head": 8, "n_positions": LENGTH, "vocab_size": 257}
SIZE |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}


def model():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**SIZE))


def rows() -> list[list[int]]:
    """STEPS · BATCH rows of LENGTH bytes of the included text."""
    stream = b"\0".join(json.loads(line)["text"].encode() for line in DATA.read_text().splitlines())
    stream = stream * (1 + STEPS * BATCH * LENGTH // len(stream))
    return [list(stream[at * LENGTH : (at + 1) * LENGTH]) for at in range(STEPS * BATCH)]


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class Clock:
    """Wall-clock and CPU seconds of the steps after the first WARM."""

    def __init__(self) -> None:
        self.steps, self.started, self.cpu_started = 0, 0.0, 0.0

    def step(self) -> None:
        self.steps += 1
        if self.steps in (WARM, STEPS):
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now, cpu = time.perf_counter(), time.process_time()
            self.seconds, self.cpu_seconds = now - self.started, cpu - self.cpu_started
            self.started, self.cpu_started = now, cpu


def ours(clock: Clock) -> None:
    """Complete program of gpuworker, without checkpoints."""
    from gpuworker.train import train_framework, trainer

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model"
        model().save_pretrained(made)
        from gpuworker.train.model import byte_tokenizer

        byte_tokenizer().save_pretrained(made)
        data = Path(folder) / "train.jsonl"
        text = "".join(json.loads(line)["text"] for line in DATA.read_text().splitlines())
        text = (text * (2 + STEPS * BATCH * LENGTH // len(text)))[: STEPS * BATCH * LENGTH]
        data.write_text(json.dumps({"text": text}) + "\n")
        step = trainer.Trainer.train_step

        def counted(self) -> None:
            step(self)
            clock.step()

        trainer.Trainer.train_step = counted
        arguments = ["--model-local-dir", str(made), "--data", str(data), "--cache", folder, "--seq-len", str(LENGTH),
                     "--batch", str(BATCH), "--lr", str(LR), "--schedule", "constant", "--warmup", "0",
                     "--log-every", "10", "--trackers", "none", *(["--bf16"] if BF16 else [])]  # fmt: skip
        assert train_framework.main(arguments) == 0


def trainer(clock: Clock) -> None:
    """transformers.Trainer with the same optimizer, its logging every ten steps, and no checkpoints."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Tick(TrainerCallback):
        def on_step_end(self, *_, **__):
            clock.step()

    class Rows(torch.utils.data.Dataset):
        found = rows()

        def __len__(self):
            return len(self.found)

        def __getitem__(self, index):
            row = torch.tensor(self.found[index])
            return {"input_ids": row, "labels": row}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=LR,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.01,
            bf16=BF16,
            use_cpu=device() == "cpu",
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=model(), args=arguments, train_dataset=Rows(), callbacks=[Tick()]).train()


def plain(clock: Clock) -> None:
    """Loop from accelerate's guide."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device() == "cpu", mixed_precision="bf16" if BF16 else "no")
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=0.01, fused=True)
    loader = torch.utils.data.DataLoader(torch.tensor(rows()), batch_size=BATCH, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    net.train()
    for number, batch in enumerate(loader, 1):
        loss = net(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
        if number % 10 == 0:
            print(loss.item())


PROGRAMS = {"gpuworker": ours, "transformers.Trainer": trainer, "accelerate": plain}


def one(name: str) -> None:
    """Run one program in this process, and print its figures as the last line."""
    import torch

    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    clock = Clock()
    PROGRAMS[name](clock)
    from gpuworker.train.throughput import peak_memory

    tokens = (STEPS - WARM) * BATCH * LENGTH
    figures = {"tokens_per_s": tokens / clock.seconds, "tokens_per_cpu_s": tokens / clock.cpu_seconds}
    print(json.dumps({**figures, "peak_memory": peak_memory(torch.device(device()))}))


def compare(rounds: int) -> None:
    found: dict[str, list[dict]] = {name: [] for name in PROGRAMS}
    environment = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'worker/src'}:{os.environ.get('PYTHONPATH', '')}",
                   "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": os.environ.get("THREADS", "1")}  # fmt: skip
    for number in range(rounds):
        # Each round starts with another program.
        names = [*PROGRAMS][number % 3 :] + [*PROGRAMS][: number % 3]
        for name in names:
            command = [sys.executable, "-m", "tests.bench.train", "--one", name]
            done = subprocess.run(command, env=environment, cwd=REPO, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{STEPS - WARM} steps of {BATCH} × {LENGTH} tokens, medians of {rounds} rounds in turns.\n")
    print("| program | tokens/s | per CPU s | peak memory, MB | gpuworker ÷ this: tokens/s | per CPU s | rounds |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        rate, busy, memory = (statistics.median(run[key] for run in runs) for key in KEYS)
        ratios, busy_ratios = (
            [own[key] / other[key] for own, other in zip(found["gpuworker"], runs, strict=True)] for key in KEYS[:2]
        )
        print(
            f"| {name} | {rate:.0f} | {busy:.0f} | {memory / 1e6:.0f} | {statistics.median(ratios):.3f} | "
            f"{statistics.median(busy_ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--one", choices=[*PROGRAMS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    one(given.one) if given.one else compare(given.rounds)
