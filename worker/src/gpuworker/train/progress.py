"""Where a run is: what a checkpoint holds beside the weights and the optimizer's state."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where a run is; the same on all ranks but for what rank 0 alone keeps for the report."""

    epoch: int = 0
    position: int = 0  # samples of this epoch that are done
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, in all attempts
    attempts: int = 0
    best: float | None = None  # validation loss
    loss_sum: float = 0.0  # of the interval that is not yet told, over all ranks
    loss_tokens: int = 0
    history: list[dict] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)
