"""Rank of a simulated training: python rank.py --steps N --seconds S. Prints the time that its trackers took.

Reads its rank from torchrun's variables. On SIGTERM it saves and exits with 75.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

from gpuworker.train.trackers import RankInfo, SettingsError, TrackerError, add_arguments, open_trackers

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seconds", type=float, default=0.01)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--end", default="finished")
parser.add_argument("--artifact", type=Path)
parser.add_argument("--history", type=int, default=0)
parser.add_argument("--key", default="loss")
parser.add_argument("--out", type=Path, required=True)
add_arguments(parser)
args = parser.parse_args()

number = {name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "NNODES")}
info = RankInfo(number["RANK"], number["LOCAL_RANK"], number["NODE_RANK"], number["WORLD_SIZE"], number["NNODES"])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
try:
    tracker = open_trackers(args, info)
    tracker.start({"lr": 0.1, "model": {"layers": 2}, "first": args.first}, "tiny", "run-default", args.out)
except SettingsError as error:
    print(error)
    sys.exit(2)
except TrackerError as error:
    print(f"TrackerError: {error}")
    tracker.finish("failed")  # as program.py does
    sys.exit(1)
for step in range(args.history):
    tracker.log(step, {"history": 0.5 * step}, at=1.8e9 + step, again=True)
delays, last = [], args.first
for step in range(args.first, args.first + args.steps):
    time.sleep(args.seconds)  # the work of a step
    start = time.perf_counter()
    tracker.log(step, {args.key: 1 / (step + 1), "tokens_per_second": 100.0 + info.rank, "diverged": float("nan")})
    delays.append(time.perf_counter() - start)
    last = step
    if step == args.first:
        print("trains", flush=True)
    if stopped:
        break
if args.artifact:
    tracker.artifact(args.artifact)
start = time.perf_counter()
tracker.finish("saved" if stopped else args.end)
facts = {"median": statistics.median(delays), "most": max(delays), "finish": time.perf_counter() - start, "last": last}
print(json.dumps(facts), flush=True)
sys.exit(75 if stopped else 0)
