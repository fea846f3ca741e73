"""train_framework.py with steps that take 50 ms more, so that a signal can meet a step or a save.

At the end of the training it prints the longest time between two steps.
"""

import itertools
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuworker.train import train_framework

ends = []


def end_step(*_):
    time.sleep(0.05)
    ends.append(time.monotonic())


def main(arguments):
    register_optimizer_step_post_hook(end_step)
    code = train_framework.main(arguments)
    print(f"[GAP] rank=0 seconds={max(b - a for a, b in itertools.pairwise(ends)):.3f}", flush=True)
    return code
