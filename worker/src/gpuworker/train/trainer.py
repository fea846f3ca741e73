"""Training loop for one process or many ranks.

Every optimizer step is a function of the weights, the optimizer state, the seed, and the position in the run. An
interrupted and resumed run therefore takes the same steps as an uninterrupted one. On CPUs, with the same number of
ranks, the results are bit-identical.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from dataclasses import replace

import torch

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.engines import make_engine
from gpuworker.train.evaluate import evaluate
from gpuworker.train.metrics import LossError, MetricsProcessor
from gpuworker.train.preemption import Stopped, StopSignal
from gpuworker.train.run_checkpoints import RunCheckpoints, describe_difference
from gpuworker.train.schedule import BatchLayout, RunSchedule, derive_seed, epoch_order, learning_rate, rank_rows
from gpuworker.train.throughput import ThroughputMeter, record_time
from gpuworker.train.trackers import Tracker
from gpuworker.train.train_spec import TrainSpec

GC_STEPS = 500  # steps between garbage collections
# Options that may change when a run is resumed, although they change what it learns.
SETTINGS = (
    "epochs", "max_steps", "batch", "accumulate", "lr", "min_lr", "betas", "wd", "warmup", "schedule", "clip",
    "bf16", "fp16", "compile",
)  # fmt: skip


class Trainer:
    """One rank's part of a run: call `prepare`, then `train`."""

    def __init__(
        self,
        spec: TrainSpec,
        args: argparse.Namespace,
        context: DistributedContext,
        stop: StopSignal,
        checkpoints: RunCheckpoints,
        tracker: Tracker,
    ):
        self.spec, self.args, self.context, self.stop = spec, args, context, stop
        self.checkpoints, self.tracker = checkpoints, tracker
        self.samples = len(spec.train)
        self.layout = BatchLayout.of(self.samples, args.batch, args.accumulate, context.world_size)
        self.schedule = RunSchedule(self.samples, args.epochs, self.layout, args.max_steps or 0)
        self.settings = {name: getattr(args, name) for name in SETTINGS} | {"world_size": context.world_size}
        self.settings |= spec.settings

    def train(self) -> None:
        """Train until the last epoch is done. Raises Stopped once all ranks have agreed to stop and saved."""
        args, state = self.args, self.state
        self.metrics.throughput.reset()
        try:
            while not self.schedule.is_done(state):
                self.order = epoch_order(self.samples, args.seed, state.epoch)
                self.evaluate_within_epoch()  # if the attempt before was stopped in it
                while state.position < self.samples and not self.schedule.is_done(state):
                    started = time.perf_counter()
                    self.stop.start_agreement(self.context)
                    self.train_step()
                    if self.metrics.is_recorded() or self.metrics.is_logged():
                        self.read_skipped()
                        self.metrics.log_step(self.lr, self.model.updater)
                    if state.step % GC_STEPS == 0:
                        gc.collect()
                    stopped = self.stop.agreed()
                    state.seconds += time.perf_counter() - started
                    if stopped:
                        raise Stopped
                    self.evaluate_within_epoch()
                    # The last step of an epoch is saved after its evaluation.
                    due = self.stop.save or (args.save_every and state.step % args.save_every == 0)
                    if due and state.position < self.samples:
                        self.save()
                if state.position >= self.samples:
                    self.finish_epoch()
            if state.position:
                self.finish_within_epoch()
        except Stopped:
            self.save(last=True)
            raise
        except LossError as error:
            self.checkpoints.set_aside_after(error.good_step)
            raise

    def prepare(self) -> None:
        """Build the model and restore the newest checkpoint. Collective."""
        context = self.context
        self.state, checkpoint = self.checkpoints.resume()
        self.log_changes()
        self.restart_best()
        self.warn_of_warmup()
        if context.is_rank_0 and (self.layout.batch, self.layout.accumulate) != (self.args.batch, self.args.accumulate):
            log(
                Tag.TRAIN,
                rank=0,
                warning="a step would be larger than the data, and takes all of them: see --batch and --grad-accum",
                batch=self.layout.batch,
                grad_accum=self.layout.accumulate,
            )
        self.model = make_engine(self.spec, self.args, context, checkpoint.folder if checkpoint else None)
        self.model.updater.counts += torch.tensor(self.state.skipped, device=context.device)
        if self.state.loss_scaler:
            self.model.updater.scaler.load_state_dict(self.state.loss_scaler)
        self.checkpoints.check_volume(self.model.checkpoint_bytes(), self.model.sharded)
        self.stop.save_is_due = self.checkpoints.is_due
        throughput = ThroughputMeter(
            context.device, context.world_size, self.model.flops_per_token, self.model.local_backward_s
        )
        self.metrics = MetricsProcessor(self.args, context, self.state, self.schedule, throughput, self.tracker)
        if context.is_rank_0:
            log(
                Tag.TRAIN,
                rank=0,
                model=self.spec.name,
                parameters=self.parameter_count(),
                trainable=sum(each.numel() for each in self.model.trainable),
                samples=self.samples,
                samples_per_step=self.layout.samples_per_step,
                steps=self.schedule.total_steps(self.state),
                validation=len(self.spec.validation) if self.spec.validation is not None else "none",
                resumed=checkpoint.folder.name if checkpoint else "no",
            )

    def has_settings(self, recorded: dict) -> bool:
        return all(recorded.get(name) == value for name, value in self.settings.items())

    def log_changes(self) -> None:
        """Log what differs from the settings of the run until now, and whether it has anything to do."""
        state = self.state
        if not self.context.is_rank_0 or not state.settings:
            return
        if (limit := self.args.max_steps) and limit < state.step:
            log(Tag.TRAIN, rank=0, nothing_to_do=f"--max-steps {limit} is below step {state.step}, where the run is")
        elif self.schedule.is_done(state):
            how = "more --epochs or --max-steps continue the run, another name of the run trains anew"
            log(Tag.TRAIN, rank=0, nothing_to_do=f"the run was done after {state.step} steps: {how}")
        elif changes := describe_difference(state.settings[-1], self.settings):
            log(Tag.TRAIN, rank=0, changed=changes, from_step=state.step + 1)

    def restart_best(self) -> None:
        """Forget the best loss of other validation data, with which new losses cannot be compared."""
        state, now = self.state, self.settings.get("validation")
        if state.settings and state.settings[-1].get("validation", now) != now:
            state.best_val_loss = None

    def warn_of_warmup(self) -> None:
        if self.schedule.warmup_fraction(self.args.warmup) >= 1 and self.context.is_rank_0:
            warning = f"--warmup {self.args.warmup:g} is not shorter than the run: no step before the last reaches --lr"
            log(Tag.TRAIN, rank=0, warning=warning)

    def parameter_count(self) -> int:
        return self.model.parameter_count()

    def train_step(self) -> None:
        """Take one optimizer step on the next samples of the epoch."""
        state, args, context, throughput = self.state, self.args, self.context, self.metrics.throughput
        taken = self.order[state.position : state.position + self.layout.samples_per_step]
        # The loss of a step is the mean over all labels of all ranks. Their number is known without communication.
        # Engines divide gradients by the number of ranks, which the scale compensates.
        labels = int(self.spec.train.label_counts[taken].sum())
        scale = context.world_size / max(1, labels)
        micro_batches = rank_rows(self.order, state.position, self.layout, context.rank)
        torch.manual_seed(derive_seed(args.seed, state.step, context.rank + 1))  # dropout
        step_loss = torch.zeros((), dtype=torch.float64, device=context.device)
        for number, rows in enumerate(micro_batches):
            started = time.perf_counter()
            batch = self.spec.train.batch(rows)
            if context.device.type == "cuda":
                batch = tuple(part.pin_memory() for part in batch)
            throughput.data_s += time.perf_counter() - started
            last = number == len(micro_batches) - 1
            loss = self.model.forward(batch, sync_gradients=last)
            step_loss += loss.detach()
            backward_started = record_time(context.device)
            self.model.backward(self.model.updater.scale(loss * scale), sync_gradients=last)
            if last and context.world_size > 1:
                throughput.backward_times.append((backward_started, record_time(context.device)))
        state.position += len(taken)
        self.lr = learning_rate(
            self.progress_after_step(), args.lr, self.schedule.warmup_fraction(args.warmup), args.schedule, args.min_lr
        )
        self.metrics.add(step_loss, labels, self.model.step(self.lr))
        if not state.settings or not self.has_settings(state.settings[-1]):
            state.settings.append({"from_step": state.step + 1, **self.settings})
        state.step += 1
        tokens = int(self.spec.train.token_counts[taken].sum())
        state.tokens += tokens
        throughput.tokens += tokens
        throughput.steps += 1

    def progress_after_step(self) -> float:
        return self.schedule.fraction_done(replace(self.state, step=self.state.step + 1))

    def evaluate(self) -> tuple[dict[str, float], bool]:
        """Evaluate and record. Returns the result, empty without validation data, and whether it is the best."""
        state, model = self.state, self.model
        if self.spec.validation is None:
            return {}, False
        started = time.perf_counter()
        result = evaluate(model.module, self.spec, self.context, self.stop, self.layout.batch, model.autocast)
        if not math.isfinite(result["loss"]):
            self.read_skipped()
            raise self.diverged(f"the validation loss is {result['loss']}")
        self.metrics.log_evaluation(self.schedule.epochs_done(state), result)
        result["seconds"] = time.perf_counter() - started
        best = state.best_val_loss is None or result["loss"] < state.best_val_loss
        if best:
            state.best_val_loss = result["loss"]
        return result, best

    def evaluate_within_epoch(self) -> None:
        """Evaluate if --eval-every asks for it after this step, and save the best. Collective."""
        state, every = self.state, self.args.eval_every
        within = 0 < state.position < self.samples and not self.schedule.is_done(state)
        if every and within and state.step % every == 0 and not state.is_evaluated():
            self.finish_evaluation()

    def finish_evaluation(self, last: bool = False) -> None:
        """Evaluate within an epoch, log, and save if the result is the best or the run's last one. Collective."""
        result, best = self.evaluate()
        self.log_result(result, best, f"{self.schedule.epochs_done(self.state):.2f}")
        if best or last:
            self.save(best=best, last=last)
        self.metrics.throughput.reset()

    def finish_within_epoch(self) -> None:
        """Evaluate and save at the end of a run that --max-steps ends within an epoch. Collective."""
        if self.state.is_evaluated():
            self.save(last=True)
        else:
            self.finish_evaluation(last=True)

    def finish_epoch(self) -> None:
        """Evaluate, log and save at the end of an epoch. Collective."""
        state = self.state
        result, best = self.evaluate()
        state.epoch += 1
        state.position = 0
        self.log_result(result, best, state.epoch)
        self.save(best=best, last=self.schedule.is_done(state))

    def log_result(self, result: dict[str, float], best: bool, epoch: object) -> None:
        if self.context.is_rank_0:
            facts = {"val_" + name: value for name, value in result.items()} if result else {"val_loss": "none"}
            log(Tag.EPOCH, rank=0, epoch=epoch, of=self.args.epochs, step=self.state.step, best=best, **facts)

    def save(self, best: bool = False, last: bool = False) -> None:
        """Commit a checkpoint of this step unless it exists. Collective.

        A state whose last gradient was not finite is kept only if it is the last one: it may have diverged.
        """
        if last:
            self.checkpoints.wait()  # if it fails, this state is saved again
        if not self.checkpoints.needs_save(self.state):
            return
        self.read_skipped()
        if self.state.skipped[1] and not last:
            return
        if not self.model.weights_are_finite():
            raise self.diverged("some weights are not finite")
        self.metrics.reduce_pending_loss()
        self.state.loss_scaler = self.model.updater.scaler.state_dict()
        self.checkpoints.save(self.state, self.model, best, last)
        self.metrics.throughput.reset()

    def read_skipped(self) -> None:
        """Put the counts of skipped steps into the state. Raises LossError after too many in a row."""
        state = self.state
        state.skipped = list(self.model.updater.skipped())
        if state.skipped[1] >= self.model.updater.max_skipped:
            raise self.diverged(f"the gradients of the last {state.skipped[1]} steps are not finite")

    def diverged(self, what: str) -> LossError:
        """Error of the current weights, which have been the same since the last step that was not skipped."""
        step = self.state.step
        return LossError(f"{what} at step {step}", step - self.state.skipped[1] - 1)
