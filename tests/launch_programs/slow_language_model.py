"""train_framework.py in slow steps. In step PAUSE_AT it waits for the file PAUSE_FILE, so that a signal meets that step.

Text in that file makes it fail there. At the end of the training it prints the longest time between two steps.
"""

import itertools
import os
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuworker.train import train_framework

ends = []


def end_step(*_):
    time.sleep(0.05)
    ends.append(time.monotonic())
    if len(ends) == int(os.environ.get("PAUSE_AT", 0)):
        while not os.path.exists(os.environ["PAUSE_FILE"]):
            time.sleep(0.01)
        if os.path.getsize(os.environ["PAUSE_FILE"]):
            raise RuntimeError("asked to fail")


def main(arguments):
    register_optimizer_step_post_hook(end_step)
    code = train_framework.main(arguments)
    print(f"[GAP] rank=0 seconds={max(b - a for a, b in itertools.pairwise(ends)):.3f}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
