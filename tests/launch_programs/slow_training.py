"""train.py in slow steps. In step PAUSE_AT it waits for the file PAUSE_FILE, so that a signal meets that step."""

import os
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuworker.train import train

steps = []


def end_step(*_):
    time.sleep(0.02)
    steps.append(1)
    while len(steps) == int(os.environ.get("PAUSE_AT", 0)) and not os.path.exists(
        os.environ["PAUSE_FILE"]
    ):
        time.sleep(0.01)


def main(arguments):
    register_optimizer_step_post_hook(end_step)
    return train.main(arguments)
