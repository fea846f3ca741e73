"""Main function of a training program: from the command line to the exit code."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.process_group import DeviceError, destroy, require_bf16
from gpuworker.train import options, report, trackers
from gpuworker.train.agreement import DisagreementError, require_same, shared_flags
from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import ResumeError, UnreadableCheckpointError
from gpuworker.train.dataset import DataError
from gpuworker.train.distributed import DistributedContext, PeerError, WorldError, host_name
from gpuworker.train.metrics import LossError
from gpuworker.train.model import ModelError
from gpuworker.train.preemption import Stopped, StopSignal
from gpuworker.train.run_checkpoints import RunCheckpoints, SaveError
from gpuworker.train.run_lock import RunLockedError, run_lock
from gpuworker.train.train_spec import TrainSpec
from gpuworker.train.trainer import Trainer
from gpuworker.train.upload import Uploader
from gpuworker.train.volume import NotSharedError, SpaceError, probe


class OutputError(ValueError):
    """The output folder cannot be used."""


USAGE_ERRORS = (
    OutputError,
    DataError,
    DeviceError,
    DisagreementError,
    ModelError,
    NotSharedError,
    ResumeError,
    RunLockedError,
    SpaceError,
    WorldError,
    trackers.SettingsError,
)
FAILURES = (
    LossError,
    PeerError,
    SaveError,
    UnreadableCheckpointError,
    trackers.TrackerError,
)  # whose message is enough: a traceback adds nothing


def run(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    make_spec: Callable[..., TrainSpec],
    judge: Callable[[dict], tuple[int, dict]] = lambda report: (ExitCode.DONE, {}),
    prepare: Callable[[argparse.Namespace], object] | None = None,
    trains: bool = True,
) -> int:
    """Train what `make_spec(args, context[, prepared])` returns, and return the exit code.

    `prepare` checks what can be checked before any GPU is used. `judge` turns the report into an exit code and facts
    for the [RESULT] line. Without `trains` it ends when the specification, with its data, is complete.
    """
    stop = StopSignal()
    stop.install()
    os.umask(os.umask(0) & 0o022)  # the next reader of the run's files may be another user
    try:
        return run_program(stop, parser, argv, make_spec, judge, prepare, trains)
    finally:
        stop.ends_process = False


def run_program(
    stop: StopSignal,
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    make_spec: Callable[..., TrainSpec],
    judge: Callable[[dict], tuple[int, dict]],
    prepare: Callable[[argparse.Namespace], object] | None,
    trains: bool,
) -> int:
    started = time.monotonic()
    args = parser.parse_args(argv)
    options.check(parser, args)
    logging.basicConfig(level=args.log_level.upper())
    context, tracker = DistributedContext(USAGE_ERRORS), None
    try:
        prepared = [prepare(args)] if prepare else []
        tracker = trackers.open_trackers(args, context.rank_info())
        context.initialize(args.device)
        if args.bf16:
            require_bf16(context.device)
        log_environment(context)
        require_same(context, "the command line", shared_flags(args))
        spec = make_spec(args, context, *prepared)
        code = train(spec, args, context, stop, tracker, started, judge) if trains else ExitCode.DONE
    except (*USAGE_ERRORS, *FAILURES) as error:
        usage = error.usage if isinstance(error, PeerError) else isinstance(error, USAGE_ERRORS)
        code = ExitCode.USAGE if usage else ExitCode.FAILED
        log(Tag.FATAL, rank=context.rank, exit_code=int(code), why=error)
    except BaseException:
        if tracker:
            tracker.finish("failed")
        raise
    if code in (ExitCode.USAGE, ExitCode.FAILED) and tracker:
        tracker.finish("failed")
    else:
        destroy()
    return int(code)


def log_environment(context: DistributedContext) -> None:
    if context.is_local_rank_0:
        gpu = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "none"
        log(Tag.ENV, host=host_name(), python=platform.python_version(), torch=torch.__version__, gpu=gpu)
    log(Tag.DDP, rank=context.rank, local_rank=context.local_rank, world=context.world_size, device=context.device)


def train(spec: TrainSpec, args, context: DistributedContext, stop: StopSignal, tracker, started: float, judge) -> int:
    folder = Path(args.output) / args.run if args.output else None
    if not folder and context.is_rank_0:
        log(Tag.TRAIN, rank=0, warning="no checkpoint and no model will be kept: set --output")
    checkpointer = uploader = None
    with contextlib.ExitStack() as held:
        with context.raise_on_all_ranks():
            if folder and context.is_rank_0:
                try:
                    held.enter_context(run_lock(folder))
                    uploader = Uploader(args.upload, args.run) if args.upload else None
                    checkpointer = Checkpointer(folder, args.keep, uploader.in_use if uploader else set)
                    probe(folder, context.rank)
                except OSError as error:
                    raise OutputError(f"--output {args.output}: user {os.getuid()} cannot write: {error}") from None
            if args.report_json and context.is_rank_0:
                try:
                    report.check_writable(Path(args.report_json))
                except OSError as error:
                    raise OutputError(
                        f"--report-json {args.report_json}: user {os.getuid()} cannot write: {error}"
                    ) from None
        checkpoints = RunCheckpoints(spec, args, context, checkpointer, uploader)
        return train_run(folder, checkpoints, spec, args, context, stop, tracker, started, judge)


def train_run(
    folder: Path | None,
    checkpoints: RunCheckpoints,
    spec: TrainSpec,
    args: argparse.Namespace,
    context: DistributedContext,
    stop: StopSignal,
    tracker: trackers.Tracker,
    started: float,
    judge: Callable[[dict], tuple[int, dict]],
) -> int:
    trainer = Trainer(spec, args, context, stop, checkpoints, tracker)
    trainer.prepare()
    stop.start_training()
    tracker.start(report.run_parameters(trainer), args.run, args.run, folder)
    trainer.metrics.resend_history()
    gc.collect()
    gc.freeze()
    # The loop collects on all ranks in the same step, because a pause of one rank is a pause of all.
    gc.disable()
    try:
        trainer.train()
        status, code = "finished", ExitCode.DONE
    except Stopped:
        status, code = ("saved", ExitCode.SAVED) if folder else ("failed", ExitCode.STOPPED)
    finally:
        gc.enable()
        gc.unfreeze()
    result = report.collect(trainer, status)
    if code == ExitCode.DONE:
        code, facts = judge(result)
        if context.is_rank_0:
            log(Tag.RESULT, rank=context.rank, **result["summary"], **facts)
        status = "finished" if code == ExitCode.DONE else "failed"
    if context.is_rank_0:
        target = Path(args.report_json) if args.report_json else folder / "report.json" if folder else None
        for path in report.write(result, target) if target else []:
            tracker.artifact(path)
    tracker.finish(status)
    if checkpoints.uploader:
        checkpoints.uploader.finish(args.upload_wait)
    if context.is_rank_0:
        saved, seconds = checkpoints.newest, time.monotonic() - started
        name = saved.name if saved else "none"
        log(Tag.DONE, rank=0, status=status, exit_code=int(code), checkpoint=name, seconds=seconds)
    return code
