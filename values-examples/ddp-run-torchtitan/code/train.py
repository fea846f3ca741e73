"""torchtitan's own program with a Trainer that SIGTERM stops and saves; the flags are torchtitan's.

torchtitan itself loads the newest checkpoint of --dump_folder.
"""

import os
import sys

import torch.distributed as dist
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from gpuworker.train.stop_request import StopRequest, global_rank


class LaunchedTrainer(Trainer):
    def __init__(self, config: Trainer.Config) -> None:
        if not config.checkpoint.enable or config.checkpoint.load_only:
            raise ValueError(
                "checkpoint.enable is off: a run cannot resume without checkpoints; set --checkpoint.enable"
            )
        super().__init__(config)
        self.stop, self.started = StopRequest(), False
        self.log_metrics, self.metrics_processor.log = self.metrics_processor.log, self.log_step

    def should_continue_training(self) -> bool:
        """torchtitan calls it before each step: the step before has been saved, if it had to be, and evaluated."""
        if not self.started:  # the newest checkpoint has been loaded
            self.started = True
            self.stop.install()
        elif self.stop.agreed():
            self.save_and_exit()
        return super().should_continue_training()

    def save_and_exit(self) -> None:
        settings = self.config.checkpoint
        if self.step % settings.interval:
            self.checkpointer.last_save_model_only = False  # a run cannot resume from a model alone
            self.checkpointer.save(self.step, last_step=True)
        self.checkpointer.close()  # waits until what is being saved is on the volume
        self.stop.exit_saved(self.step, f"{settings.folder}/step-{self.step}")

    def log_step(
        self, step: int, loss: float, largest_loss: float, norm: float, *rest, **more
    ) -> None:
        self.log_metrics(step, loss, largest_loss, norm, *rest, **more)
        if global_rank() == 0:
            print(
                f"[STEP] rank=0 step={step}/{self.config.training.steps} loss={loss:.6g}",
                flush=True,
            )


if __name__ == "__main__":
    folder = os.path.join(
        "/out", os.environ.get("RUN_ID", "run")
    )  # the chart sets RUN_ID to the run's name
    init_logger()
    config = ConfigManager().parse_args(
        ["--checkpoint.enable", "--dump_folder", folder, *sys.argv[1:]]
    )
    trainer = LaunchedTrainer(config)
    trainer.train()
    trainer.close()
    dist.destroy_process_group()
