"""train_framework.py, with steps that take 50 ms more, so that a signal can meet a step or a save."""

import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpuworker.train import train_framework

register_optimizer_step_post_hook(lambda *_: time.sleep(0.05))
main = train_framework.main
