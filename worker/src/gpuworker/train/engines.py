"""The engines that --engine selects."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuworker.train import memory
from gpuworker.train.data_parallel import DataParallelModel
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.engine import Engine
from gpuworker.train.fully_sharded import FullyShardedModel
from gpuworker.train.train_spec import TrainSpec

ENGINES = {"ddp": DataParallelModel, "fsdp": FullyShardedModel}


def make_engine(
    spec: TrainSpec, args: argparse.Namespace, context: DistributedContext, checkpoint: Path | None
) -> Engine:
    """The engine that --engine names, with the state of rank 0's checkpoint if it has one. Collective."""
    memory.require_room(spec, args, context)
    return ENGINES[args.engine](spec, args, context, checkpoint)
