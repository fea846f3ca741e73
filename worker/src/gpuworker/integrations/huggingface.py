"""Hugging Face's Trainer, and trainers derived from it such as TRL's.

  trainer = Trainer(…, callbacks=[LaunchCallback()])
  trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

On SIGTERM all ranks save after the same step and exit with 75. Leave `enable_jit_checkpoint` off: it saves on each rank
by itself.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gpuworker.integrations.stop_request import StopRequest, from_rank_0
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log


class LaunchCallback(TrainerCallback):
    def __init__(self) -> None:
        self.stop, self.stopping = StopRequest(), False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        if args.save_only_model:
            raise ValueError("save_only_model=True: a run cannot resume from a model alone; set it to False")
        self.stop.install()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        self.stop.start_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        if self.stop.agreed():
            self.stopping = control.should_save = True
            control.should_evaluate = False  # the grace period is for saving

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        if self.stopping:  # here and not at the end, where Trainer may load, and delete, checkpoints
            self.stop.exit_saved(state.global_step, f"checkpoint-{state.global_step}")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs=None, **_) -> None:
        if state.is_world_process_zero and "loss" in (logs or {}):
            facts = {"epoch": logs.get("epoch"), "loss": logs["loss"], "lr": logs.get("learning_rate")}
            facts |= {"grad_norm": logs.get("grad_norm")}
            log(Tag.STEP, rank=0, step=f"{state.global_step}/{state.max_steps}", **facts)


def newest_checkpoint(output_dir: str) -> str | None:
    """Newest complete checkpoint, the same on all ranks. Trainer writes trainer_state.json last, so a checkpoint
    without it is one that was being written when the run was killed."""
    complete = []
    for path in Path(output_dir).glob("checkpoint-*/trainer_state.json"):
        try:
            complete.append((json.loads(path.read_bytes())["global_step"], str(path.parent)))
        except ValueError:  # cut off
            continue
    return from_rank_0(max(complete)[1] if complete else None)
