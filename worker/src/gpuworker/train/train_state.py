"""Position and history of a run: what a checkpoint holds besides weights and optimizer state."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainState:
    """State of the run. It is the same on all ranks, except for the fields that only rank 0 keeps for the report."""

    epoch: int = 0
    position: int = 0  # samples of this epoch that are done
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, in all attempts
    attempts: int = 0
    skipped: list[int] = field(default_factory=lambda: [0, 0])  # steps, because of their gradients: all, in a row
    loss_scaler: dict = field(default_factory=dict)  # its scale, with --fp16
    best_val_loss: float | None = None
    pending_loss_sum: float = 0.0  # over all ranks, of the interval that is not logged yet
    pending_labels: int = 0
    history: list[dict] = field(default_factory=list)
    settings: list[dict] = field(default_factory=list)  # each with from_step, the first step that was taken with it
    evaluations: list[dict] = field(default_factory=list)

    def order(self) -> tuple[int, int]:
        """Order of checkpoints: the step, then whether its evaluation, or the end of its epoch, is included."""
        return self.step, int(self.position == 0 or self.is_evaluated())

    def checkpoint_name(self) -> str:
        if self.position == 0:
            return f"epoch-{self.epoch:04}"
        return f"epoch-{self.epoch + 1:04}-step-{self.step:08}" + ("-evaluated" if self.is_evaluated() else "")

    def is_evaluated(self) -> bool:
        """Whether the evaluations include one of this step."""
        return bool(self.evaluations) and self.evaluations[-1]["step"] == self.step
