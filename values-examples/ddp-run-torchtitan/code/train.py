"""torchtitan's own program with a Trainer that SIGTERM stops and saves; the flags are torchtitan's."""

import os
import sys

import torch.distributed as dist
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

from gpuworker.train.integrations.torchtitan import LaunchedTrainer

folder = os.path.join("/out", os.environ.get("RUN_ID", "run"))  # the chart sets RUN_ID to the run's name
init_logger()
config = ConfigManager().parse_args(["--checkpoint.enable", "--dump_folder", folder, *sys.argv[1:]])
trainer = LaunchedTrainer(config)
trainer.train()
trainer.close()
dist.destroy_process_group()
