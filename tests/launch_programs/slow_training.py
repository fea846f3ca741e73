"""train.py, with steps that take 20 ms, so that a signal can meet a step."""

import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuworker.train import train

register_optimizer_step_post_hook(lambda *_: time.sleep(0.02))
main = train.main
