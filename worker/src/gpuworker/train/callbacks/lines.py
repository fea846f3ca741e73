"""Lines with a tag, of rank 0: [STEP] when the Trainer logs, [EPOCH] when it has evaluated."""

from transformers import TrainerCallback

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_) -> None:
        if args.process_index == 0 and "loss" in logs:
            names = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr"}
            facts = {short: float(logs[name]) for name, short in names.items() if name in logs}
            at = {"step": f"{state.global_step}/{state.max_steps}", "epoch": state.epoch}
            log(Tag.STEP, rank=0, **at, **facts)

    def on_evaluate(self, args, state, control, metrics=None, **_) -> None:
        if args.process_index == 0 and "eval_loss" in metrics:
            numbers = {name.replace("eval", "val"): f"{metrics[name]:.7g}" for name in metrics}
            log(Tag.EPOCH, rank=0, **numbers, step=state.global_step)
