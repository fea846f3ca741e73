"""A rank that trains: python rank.py --steps N --seconds S. Prints how long it was held up by its trackers.

Who it is comes from torchrun's variables. SIGTERM: it saves and exits with 75.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

from gpuworker.train.trackers import SettingsError, World, add_arguments, open_trackers

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seconds", type=float, default=0.01)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--end", default="finished")
parser.add_argument("--artifact", type=Path)
parser.add_argument("--out", type=Path, required=True)
add_arguments(parser)
args = parser.parse_args()

number = {name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "NNODES")}
world = World(number["RANK"], number["LOCAL_RANK"], number["NODE_RANK"], number["WORLD_SIZE"], number["NNODES"])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
try:
    tracker = open_trackers(args, world)
    tracker.start({"lr": 0.1, "model": {"layers": 2}, "first": args.first}, "tiny", "run-default", args.out)
except SettingsError as error:
    print(error)
    sys.exit(2)
held, last = [], args.first
for step in range(args.first, args.first + args.steps):
    time.sleep(args.seconds)  # the work of a step
    start = time.perf_counter()
    tracker.log(step, {"loss": 1 / (step + 1), "tokens_per_second": 100.0 + world.rank, "diverged": float("nan")})
    held.append(time.perf_counter() - start)
    last = step
    if step == args.first:
        print("trains", flush=True)
    if stopped:
        break
if args.artifact:
    tracker.artifact(args.artifact)
start = time.perf_counter()
tracker.finish("saved" if stopped else args.end)
facts = {"median": statistics.median(held), "most": max(held), "finish": time.perf_counter() - start, "last": last}
print(json.dumps(facts), flush=True)
sys.exit(75 if stopped else 0)
