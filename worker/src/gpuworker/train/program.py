"""From the command line to the exit code: the part of a training program that is not the training."""

from __future__ import annotations

import argparse
import gc
import logging
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpuworker.runtime.log import log
from gpuworker.train import report, trackers
from gpuworker.train.checkpoint import Store
from gpuworker.train.dataset import DataError
from gpuworker.train.distributed import DeviceError, World, host
from gpuworker.train.model import ModelError
from gpuworker.train.preemption import SAVED, Stop, Stopped
from gpuworker.train.task import Task
from gpuworker.train.trainer import ResumeError, Trainer
from gpuworker.train.upload import Uploader

USAGE, STOPPED = 2, 143
WRONG = (DataError, DeviceError, ModelError, ResumeError, trackers.SettingsError)


def run(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    make: Callable[..., Task],
    judge: Callable[[dict], tuple[int, dict]] = lambda report: (0, {}),
    prepare: Callable[[argparse.Namespace], object] | None = None,
) -> int:
    """Train what `make(args, world[, prepared])` gives, and return the exit code.

    `prepare` checks what can be checked before any GPU is touched. `judge` turns the report into an exit code and
    facts for the [RESULT] line.
    """
    stop, begun = Stop(), time.monotonic()
    stop.listen()
    args = parser.parse_args(argv)
    logging.basicConfig(level=args.log_level.upper())
    world, tracker = World(), None
    try:
        prepared = [prepare(args)] if prepare else []
        tracker = trackers.open_trackers(args, world.for_trackers())
        world.join(args.device)
        introduce(world)
        code = train(make(args, world, *prepared), args, world, stop, tracker, begun, judge)
    except WRONG as error:
        log("FATAL", rank=world.rank, exit_code=USAGE, why=error)
        code = USAGE
    except BaseException:
        if tracker:
            tracker.finish("failed")
        raise
    if code == USAGE and tracker:
        tracker.finish("failed")
    else:
        world.close()
    return code


def introduce(world: World) -> None:
    if world.node_lead:
        gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "none"
        log("ENV", host=host(), python=platform.python_version(), torch=torch.__version__, gpu=gpu)
    log("DDP", rank=world.rank, local_rank=world.local_rank, world=world.size, device=world.device)


def train(task: Task, args, world: World, stop: Stop, tracker, begun: float, judge) -> int:
    folder = Path(args.output) / args.run if args.output else None
    uploader = Uploader(args.upload, args.run) if args.upload and folder and world.lead else None
    store = Store(folder, args.keep, uploader.busy if uploader else set) if folder and world.lead else None
    trainer = Trainer(task, args, world, stop, store, uploader, tracker)
    trainer.prepare()
    tracker.start(report.parameters(trainer), args.run, args.run, folder)
    gc.collect()
    gc.freeze()
    # Collected by the loop on all ranks in the same step: one rank's pause is every rank's.
    gc.disable()
    try:
        trainer.run()
        status, code = "finished", 0
    except Stopped:
        status, code = ("saved", SAVED) if folder else ("failed", STOPPED)
    finally:
        gc.enable()
        gc.unfreeze()
    result = report.collect(trainer, status)
    if code == 0:
        code, facts = judge(result)
        if world.lead:
            log("RESULT", rank=world.rank, **result["summary"], **facts)
        status = "finished" if code == 0 else "failed"
    if world.lead:
        target = Path(args.report_json) if args.report_json else folder / "report.json" if folder else None
        for path in report.write(result, target) if target else []:
            tracker.artifact(path)
    tracker.finish(status)
    if uploader:
        uploader.finish(args.upload_wait)
    if world.lead:
        saved = trainer.saved.name if trainer.saved else "none"
        log("DONE", rank=0, status=status, exit_code=code, checkpoint=saved, seconds=time.monotonic() - begun)
    return code
