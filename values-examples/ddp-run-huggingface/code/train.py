"""A small GPT trained by Hugging Face's Trainer: it learns to count. SIGTERM saves, and the next start continues."""

import argparse
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gpuworker.train.callbacks.durable import Durable, newest
from gpuworker.train.callbacks.lines import Lines
from gpuworker.train.callbacks.stop import Stop

WORDS, LENGTH = 64, 16


class Counting(torch.utils.data.Dataset):
    """Sequences of consecutive numbers."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        row = (torch.arange(LENGTH) + index) % WORDS
        return {"input_ids": row, "labels": row}


parser = argparse.ArgumentParser()
parser.add_argument("--output", default="/out")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
)
arguments = TrainingArguments(
    output_dir=os.path.join(
        options.output, os.environ.get("RUN_ID", "run")
    ),  # the chart sets RUN_ID to the run's name
    max_steps=options.steps,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    logging_steps=5,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
    ddp_backend="gloo" if "RANK" in os.environ and not torch.cuda.is_available() else None,
)
callbacks = [Lines(), Durable(keep=2, every=50), Stop()]
trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=callbacks)
trainer.train(resume_from_checkpoint=newest(arguments.output_dir))
trainer.save_model(os.path.join(arguments.output_dir, "final"))
