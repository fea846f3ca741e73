"""The training loop: one for one process and for hundreds.

Every optimizer step is a function of the weights, the optimizer's state, the seed, and the position in the run. So a
run that was interrupted and resumed goes the way of one that was not: on CPUs bit for bit, with as many ranks.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import time
from dataclasses import asdict
from pathlib import Path

import torch

from gpuworker.runtime.log import log
from gpuworker.train import throughput
from gpuworker.train.checkpoint import Checkpoint, Store
from gpuworker.train.distributed import World
from gpuworker.train.engine import Engine
from gpuworker.train.evaluate import evaluate
from gpuworker.train.preemption import Stop, Stopped
from gpuworker.train.progress import Progress
from gpuworker.train.schedule import Shape, epoch_order, learning_rate, mix, rows, steps_left
from gpuworker.train.task import Task
from gpuworker.train.trackers import Tracker
from gpuworker.train.upload import Uploader

COLLECT_EVERY = 500  # steps between collections of garbage


class ResumeError(ValueError):
    """The run's checkpoint is of another training."""


class LossError(ArithmeticError):
    """The loss is no number any more."""


class Trainer:
    """`store` and `uploader` are rank 0's. Prepare it, run it, then take its report."""

    def __init__(
        self,
        task: Task,
        args: argparse.Namespace,
        world: World,
        stop: Stop,
        store: Store | None,
        uploader: Uploader | None,
        tracker: Tracker,
    ):
        self.task, self.args, self.world, self.stop = task, args, world, stop
        self.store, self.uploader, self.tracker = store, uploader, tracker
        self.shape = Shape(args.batch, args.accumulate, world.size)
        self.samples = len(task.train)
        self.progress = Progress()
        self.saved: Path | None = None
        self.saved_order: tuple[int, int] | None = None

    # -- before the first step

    def prepare(self) -> None:
        """Model, optimizer, and what a checkpoint has of them. Collective."""
        found = self.resume()
        world, args = self.world, self.args
        self.engine = Engine(self.task, args, world, found.shared if found else None)
        self.meter = throughput.Meter(world.device, world.size, self.engine.flops, self.engine.alone_s)
        self.loss = torch.zeros((), dtype=torch.float64, device=world.device)  # this rank's, of the interval
        if world.lead:
            self.loss += self.progress.loss_sum
        self.order = epoch_order(self.samples, args.seed, self.progress.epoch)
        if world.lead:
            log(
                "TRAIN",
                rank=0,
                task=self.task.name,
                parameters=sum(each.numel() for each in self.engine.plain.parameters()),
                trained=sum(each.numel() for each in self.engine.trained),
                samples=self.samples,
                samples_a_step=self.shape.step,
                steps=self.steps_in_all(),
                validation=len(self.task.validation) if self.task.validation is not None else "none",
                resumed=found.folder.name if found else "no",
            )

    def resume(self) -> Checkpoint | None:
        """Rank 0 decides what is resumed, and tells all: ranks may see a shared folder differently for a while."""
        found: Checkpoint | None = None
        with self.world.all_or_none():
            # Never means what an earlier run left; an attempt that follows goes on from this run's own.
            if self.store and self.args.resume == "never" and os.environ.get("ATTEMPT", "0") == "0":
                self.store.set_aside()
            elif self.store:
                found = self.store.newest()
                if found and (other := different(found.state["identity"], self.identity())):
                    raise ResumeError(
                        f"{found.folder} is of another training: {other}; take another --run, or --resume never"
                    )
        told = self.world.broadcast((found.state, found.order) if found else None)
        if told:
            state, order = told
            self.progress = Progress(**state["progress"])
            self.saved_order = tuple(order)
        self.progress.attempts += 1
        return found

    def identity(self) -> dict:
        return {**self.task.identity, "task": self.task.name, "seed": self.args.seed}

    # -- a step

    def train_step(self) -> None:
        """One optimizer step on the next samples of the epoch."""
        progress, args, world = self.progress, self.args, self.world
        taken = self.order[progress.position : progress.position + self.shape.step]
        # The loss of a step is the mean over all tokens that all ranks learn in it. How many there are is known from
        # the data's table; DistributedDataParallel divides by the number of ranks, so that is made good here.
        learned = int(self.task.train.learned[taken].sum())
        scale = world.size / max(1, learned)
        mine = rows(self.order, progress.position, self.shape, world.rank)
        torch.manual_seed(mix(args.seed, progress.step, world.rank + 1))  # dropout
        for number, row in enumerate(mine):
            begun = time.perf_counter()
            batch = self.task.train.batch(row)
            if world.device.type == "cuda":
                batch = tuple(part.pin_memory() for part in batch)
            self.meter.data_s += time.perf_counter() - begun
            synchronise = number == len(mine) - 1
            loss = self.engine.forward(batch, synchronise)
            self.loss += loss.detach()
            before = throughput.mark(world.device)
            self.engine.backward(loss * scale, synchronise)
            if synchronise and world.size > 1:
                self.meter.backward.append((before, throughput.mark(world.device)))
        progress.position += len(taken)
        self.rate = learning_rate(self.share_done(), args.lr, self.warmup(), args.schedule)
        self.engine.step(self.rate)
        progress.step += 1
        progress.loss_tokens += learned
        tokens = int(self.task.train.sizes[taken].sum())
        progress.tokens += tokens
        self.meter.tokens += tokens
        self.meter.steps += 1

    def share_done(self) -> float:
        progress = self.progress
        return (progress.epoch * self.samples + progress.position) / (self.args.epochs * self.samples)

    def warmup(self) -> float:
        """As a share of the run."""
        given = self.args.warmup
        return given if given < 1 else min(1.0, given * self.shape.step / (self.args.epochs * self.samples))

    def steps_in_all(self) -> int:
        """Counted from where the run is, as earlier steps may have been larger or smaller."""
        progress = self.progress
        whole = steps_left(self.samples, 0, self.shape) * max(0, self.args.epochs - progress.epoch - 1)
        now = steps_left(self.samples, progress.position, self.shape) if progress.epoch < self.args.epochs else 0
        return progress.step + now + whole

    # -- the run

    def run(self) -> None:
        """Until the last epoch is done. Raises Stopped once a stop has been agreed on and the state is saved."""
        progress = self.progress
        self.meter.restart()
        try:
            while progress.epoch < self.args.epochs:
                self.order = epoch_order(self.samples, self.args.seed, progress.epoch)
                self.steps_of_epoch()
                self.end_epoch()
        except Stopped:
            self.save()
            raise

    def steps_of_epoch(self) -> None:
        progress, args = self.progress, self.args
        while progress.position < self.samples:
            begun = time.perf_counter()
            self.stop.begin(self.world)
            self.train_step()
            if self.is_kept() or self.is_said():
                self.tell()
            if progress.step % COLLECT_EVERY == 0:
                gc.collect()
            stopped = self.stop.agreed()
            progress.seconds += time.perf_counter() - begun
            if stopped:
                raise Stopped
            if args.save_every and progress.step % args.save_every == 0:
                self.save()

    def end_epoch(self) -> None:
        progress, world = self.progress, self.world
        found: dict[str, float] = {}
        if self.task.validation is not None:
            begun = time.perf_counter()
            found = evaluate(self.engine.plain, self.task, world, self.stop, self.args.batch, self.engine.precision)
            self.tracker.log(progress.step, {f"validation/{name}": found[name] for name in ("loss", "perplexity")})
            progress.evaluations.append({"step": progress.step, "epoch": progress.epoch + 1, **found})
            found["seconds"] = time.perf_counter() - begun
        progress.epoch += 1
        progress.position = 0
        better = bool(found) and (progress.best is None or found["loss"] < progress.best)
        if better:
            progress.best = found["loss"]
        if world.lead:
            facts = {"val_" + name: value for name, value in found.items()} if found else {"val_loss": "none"}
            log("EPOCH", rank=0, epoch=progress.epoch, of=self.args.epochs, step=progress.step, best=better, **facts)
        self.save(evaluated=True, best=better)

    # -- what is told and kept

    def is_said(self) -> bool:
        """Whether --log-batches wants a line of this step; without it every step that is kept has one."""
        first, last = self.progress.position <= self.shape.step, self.progress.position >= self.samples
        return {None: self.is_kept(), "all": True, "first-last": first or last, "none": False}[self.args.log_batches]

    def is_kept(self) -> bool:
        """Whether the report and the trackers have this step at any rate."""
        return self.progress.step % self.args.log_every == 0 or self.share_done() >= 1

    def tell(self) -> None:
        """A point of the plot, the trackers' metrics, and a line. Collective."""
        progress, world = self.progress, self.world
        figures = self.meter.read()
        own = figures["tokens_per_s"] / world.size
        loss_sum, waited = world.sum(self.loss.item(), figures["data_wait"])
        loss = loss_sum / max(1, progress.loss_tokens)
        self.loss.zero_()
        progress.loss_tokens = 0
        if not math.isfinite(loss):
            raise LossError(
                f"the loss is {loss} at step {progress.step}: lower --lr, raise --warmup, or look at the data"
            )
        figures["data_wait"] = waited / world.size
        shown = {"loss": loss, "lr": self.rate, **figures}
        progress.history.append({"step": progress.step, "epoch": self.share_done() * self.args.epochs, **shown})
        self.tracker.log(progress.step, shown if world.lead else {"tokens_per_s": own})
        if world.lead and self.is_said():
            shares = {name: f"{figures[name]:.1%}" for name in ("mfu", "data_wait", "communication") if name in figures}
            left = (1 - self.share_done()) * self.args.epochs * self.samples / self.shape.step * figures["step_s"]
            log(
                "STEP",
                rank=0,
                step=f"{progress.step}/{self.steps_in_all()}",
                epoch=f"{progress.history[-1]['epoch']:.2f}",
                loss=f"{loss:.4f}",
                lr=self.rate,
                tokens_per_s=f"{figures['tokens_per_s']:.0f}",
                **{"mfu": "n/a", **shares},
                eta=throughput.duration(left),
            )

    def save(self, evaluated: bool = False, best: bool = False) -> None:
        """Commit a checkpoint of this moment, unless there is one. Collective as far as sums go."""
        if not self.args.output:
            return
        progress = self.progress
        order = (progress.step, int(evaluated or progress.position == 0))
        if order == self.saved_order:
            return
        progress.loss_sum = self.world.sum(self.loss.item())[0]
        if not math.isfinite(progress.loss_sum):
            raise LossError(f"the loss is {progress.loss_sum} at step {progress.step}: lower --lr, or look at the data")
        self.saved_order = order
        if self.store:
            begun = time.perf_counter()
            epoch = f"epoch-{progress.epoch if order[1] else progress.epoch + 1:04}"
            name = epoch if order[1] else f"{epoch}-step-{progress.step:08}"
            state = {"progress": asdict(progress), "identity": self.identity(), "world": self.world.size}
            self.saved = self.store.save(name, order, state, self.engine.save)
            if best:
                self.store.point("best", name)
            if self.uploader:
                self.uploader.submit(self.saved)
            self.store.retain()
            log("TRAIN", rank=0, saved=name, step=progress.step, best=best, seconds=time.perf_counter() - begun)
        self.meter.restart()


def different(before: dict, now: dict) -> str:
    return "; ".join(f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key])
