"""Faults of rank 1, for the self-proof of the checks: Python runs this file at its start when it is on PYTHONPATH.

FAULT=flip   every all-reduce leaves one wrong element on this rank
FAULT=crash  the rank dies after its work is done and reported
"""

import atexit
import os

if os.environ.get("RANK") == "1" and os.environ.get("FAULT") == "crash":
    atexit.register(os._exit, 9)

if os.environ.get("RANK") == "1" and os.environ.get("FAULT") == "flip":
    import torch.distributed

    healthy = torch.distributed.all_reduce

    def all_reduce(tensor, *args, **kwargs):
        healthy(tensor, *args, **kwargs)
        if tensor.numel() > 1:  # not the time of the slowest rank
            tensor[tensor.numel() // 2] += 1

    torch.distributed.all_reduce = all_reduce
