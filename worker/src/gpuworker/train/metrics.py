"""Metrics of training steps for the log, the report and the trackers."""

from __future__ import annotations

import argparse
import math

import torch

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.schedule import RunSchedule
from gpuworker.train.throughput import ThroughputMeter, format_duration
from gpuworker.train.trackers import Tracker
from gpuworker.train.train_state import TrainState


class LossError(ArithmeticError):
    """The loss is not finite."""


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

    def is_recorded(self) -> bool:
        """Whether the report and the trackers contain this step."""
        return self.state.step % self.args.log_every == 0 or self.schedule.fraction_done(self.state) >= 1

    def is_logged(self) -> bool:
        """Whether this step has a log line: per --log-batches, by default every recorded step."""
        position, samples = self.state.position, self.schedule.samples
        at_end = position <= self.schedule.layout.samples_per_step or position >= samples
        lines = {None: self.is_recorded(), "all": True, "first-last": at_end, "none": False}
        return lines[self.args.log_batches]

    def log_step(self, lr: float) -> None:
        """Record and log this step if it is due: plot, trackers, log line. Collective."""
        if not (self.is_recorded() or self.is_logged()):
            return
        state, context = self.state, self.context
        figures = self.throughput.measure()
        rank_tokens_per_s = figures["tokens_per_s"] / context.world_size
        loss_sum, data_wait = context.all_reduce_sum(self.loss.item(), figures["data_wait"])
        loss = loss_sum / max(1, state.pending_labels)
        self.loss.zero_()
        state.pending_labels = 0
        if not math.isfinite(loss):
            raise LossError(f"the loss is {loss} at step {state.step}: lower --lr, raise --warmup, or check the data")
        figures["data_wait"] = data_wait / context.world_size
        metrics = {"loss": loss, "lr": lr, **figures}
        epoch = self.schedule.fraction_done(state) * self.schedule.epochs
        state.history.append({"step": state.step, "epoch": epoch, **metrics})
        self.tracker.log(state.step, metrics if context.is_rank_0 else {"tokens_per_s": rank_tokens_per_s})
        if context.is_rank_0 and self.is_logged():
            shares = {name: f"{figures[name]:.1%}" for name in ("mfu", "data_wait", "communication") if name in figures}
            log(
                Tag.STEP,
                rank=0,
                step=f"{state.step}/{self.schedule.total_steps(state)}",
                epoch=f"{epoch:.2f}",
                loss=f"{loss:.4f}",
                lr=lr,
                tokens_per_s=f"{figures['tokens_per_s']:.0f}",
                **{"mfu": "n/a", **shares},
                eta=format_duration(self.schedule.steps_to_go(state) * figures["step_s"]),
            )

    def reduce_pending_loss(self) -> None:
        """Put the loss sum of the unfinished interval into the state. Collective."""
        state = self.state
        state.pending_loss_sum = self.context.all_reduce_sum(self.loss.item())[0]
        if not math.isfinite(state.pending_loss_sum):
            raise LossError(f"the loss is {state.pending_loss_sum} at step {state.step}: lower --lr, or check the data")
