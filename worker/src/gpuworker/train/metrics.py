"""Metrics of training steps for the log, the report and the trackers."""

from __future__ import annotations

import argparse
import math
import time

import torch

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.optimizer import Updater
from gpuworker.train.schedule import RunSchedule
from gpuworker.train.throughput import ThroughputMeter, format_duration, peak_memory
from gpuworker.train.trackers import Tracker
from gpuworker.train.train_state import TrainState


class LossError(ArithmeticError):
    """Loss, gradients or weights are not finite. `good_step`: the last step whose state may still be good."""

    def __init__(self, what: str, good_step: int):
        super().__init__(f"{what}: lower --lr, raise --warmup, or check the data")
        self.good_step = good_step


class MetricsProcessor:
    """Losses and figures of the current interval. `loss`: sum over this rank's labels, kept on the device."""

    def __init__(
        self,
        args: argparse.Namespace,
        context: DistributedContext,
        state: TrainState,
        schedule: RunSchedule,
        throughput: ThroughputMeter,
        tracker: Tracker,
    ):
        self.args, self.context, self.state, self.schedule = args, context, state, schedule
        self.throughput, self.tracker = throughput, tracker
        self.loss = torch.zeros((), dtype=torch.float64, device=context.device)
        if context.is_rank_0:
            self.loss += state.pending_loss_sum
        self.skipped_labels = torch.zeros((), dtype=torch.float64, device=context.device)

    def add(self, loss: torch.Tensor, labels: int, skipped: torch.Tensor) -> None:
        """Count a step with this sum of losses, unless the step was skipped. Does not wait for the device."""
        self.loss += torch.where(skipped > 0, 0.0, loss)
        self.skipped_labels += labels * skipped
        self.state.pending_labels += labels

    def settle_labels(self) -> None:
        """Take the labels of skipped steps out of the state's count."""
        self.state.pending_labels -= int(self.skipped_labels)
        self.skipped_labels.zero_()

    def is_recorded(self) -> bool:
        """Whether the report and the trackers contain this step."""
        return self.state.step % self.args.log_every == 0 or self.schedule.is_done(self.state) or self.is_at_end()

    def is_at_end(self) -> bool:
        """Whether this is the last step of the last epoch, before its evaluation."""
        return self.schedule.epochs_done(self.state) >= self.schedule.epochs

    def is_logged(self) -> bool:
        """Whether this step has a log line: per --log-batches, by default every recorded step."""
        position, samples = self.state.position, self.schedule.samples
        at_end = position <= self.schedule.layout.samples_per_step or position >= samples
        lines = {None: self.is_recorded(), "all": True, "first-last": at_end, "none": False}
        return lines[self.args.log_batches]

    def log_step(self, lr: float, updater: Updater) -> None:
        """Record and log this step: plot, trackers, log line. Collective."""
        state, context = self.state, self.context
        figures = self.throughput.measure()
        rank_tokens_per_s = figures["tokens_per_s"] / context.world_size
        loss_sum, data_wait = context.all_reduce_sum(self.loss.item(), figures["data_wait"])
        self.settle_labels()
        skipped = state.skipped[0]
        if not state.pending_labels and state.skipped[1]:
            if context.is_rank_0 and self.is_logged():
                log(Tag.STEP, rank=0, step=state.step, loss="n/a", lr=lr, skipped=skipped)
            return
        loss = loss_sum / max(1, state.pending_labels)
        self.loss.zero_()
        state.pending_labels = 0
        if not math.isfinite(loss):
            raise LossError(f"the loss is {loss} at step {state.step}", state.step)
        figures["data_wait"] = data_wait / context.world_size
        norm = updater.norm.item()
        gradient = {"grad_norm": norm} if math.isfinite(norm) else {}  # else the step was skipped
        if updater.scaler.is_enabled():
            gradient["loss_scale"] = updater.scaler.get_scale()
        memory = peak_memory(context.device)
        metrics = {"loss": loss, "lr": lr, **gradient, "memory_bytes": memory, **figures}
        epoch = self.schedule.epochs_done(state)
        now = time.time()
        state.history.append({"step": state.step, "epoch": epoch, "time": now, **metrics})
        self.tracker.log(state.step, metrics if context.is_rank_0 else {"tokens_per_s": rank_tokens_per_s}, now)
        if context.is_rank_0 and self.is_logged():
            shares = {name: f"{figures[name]:.1%}" for name in ("mfu", "data_wait", "communication") if name in figures}
            log(
                Tag.STEP,
                rank=0,
                step=f"{state.step}/{self.schedule.total_steps(state)}",
                epoch=f"{epoch:.2f}",
                loss=f"{loss:.4f}",
                lr=lr,
                **{name: f"{value:.4g}" for name, value in gradient.items()},
                memory=f"{memory / 2**30:.2f}GiB",
                tokens_per_s=f"{figures['tokens_per_s']:.0f}",
                **{"mfu": "n/a", **shares},
                **({"skipped": skipped} if skipped else {}),
                eta=format_duration(self.schedule.steps_to_go(state) * figures["step_s"]),
            )

    def log_evaluation(self, epoch: int, result: dict[str, float]) -> None:
        state, now = self.state, time.time()
        state.evaluations.append({"step": state.step, "epoch": epoch, "time": now, **result})
        self.tracker.log(state.step, validation_metrics(result), now)

    def resend_history(self) -> None:
        """Report what earlier attempts recorded, because they may have ended before it was sent."""
        if not self.context.is_rank_0:
            return
        for entry in self.state.history:
            if "time" in entry:
                metrics = {name: entry[name] for name in entry if name not in ("step", "epoch", "time")}
                self.tracker.log(entry["step"], metrics, entry["time"], again=True)
        for entry in self.state.evaluations:
            if "time" in entry:
                self.tracker.log(entry["step"], validation_metrics(entry), entry["time"], again=True)

    def reduce_pending_loss(self) -> None:
        """Put the loss sum of the unfinished interval into the state. Collective."""
        state = self.state
        self.settle_labels()
        state.pending_loss_sum = self.context.all_reduce_sum(self.loss.item())[0]
        if not math.isfinite(state.pending_loss_sum):
            raise LossError(f"the loss is {state.pending_loss_sum} at step {state.step}", state.step)


def validation_metrics(result: dict) -> dict[str, float]:
    return {f"validation/{name}": result[name] for name in ("loss", "perplexity")}
