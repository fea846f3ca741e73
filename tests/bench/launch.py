"""Benchmark of ddp-launch: its start against torchrun's. `python -m tests.baseline restarts` has
restarts.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from hack.paths import ToolError
from tests.helpers.processes import environment, free_port

PROGRAM = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print(f"\\nREDUCED {time.monotonic()}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d")
LAUNCH = (sys.executable, "-m", "gpuworker.launch.launcher")
WORLDS = ((1, 2), (2, 2))  # nodes, ranks of each
LIMIT_S = 180


def start(way: tuple[str, ...], nodes: int, each: int, program: Path) -> list[subprocess.Popen]:
    """One launcher per node, all on this machine."""
    port = free_port(2)
    started = []
    for node in range(nodes):
        flags = [f"--nnodes={nodes}", f"--nproc-per-node={each}", f"--node-rank={node}"]
        if way is TORCHRUN:
            flags += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
        else:
            flags += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        command = [*way, *flags, str(program)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=environment(), **streams))
    return started


def end(started: list[subprocess.Popen]) -> str:
    """The output of all, which must end well."""
    output = "".join(each.communicate(timeout=LIMIT_S)[0] for each in started)
    if any(each.returncode for each in started):
        raise ToolError(f"exit codes {[each.returncode for each in started]}:\n{output}")
    return output


def met(goal: bool) -> str:
    return "met" if goal else "MISSED"


def measure(rounds: int, home: Path):
    """Seconds from the start of the launchers to the end of the first all-reduce on all ranks."""
    program = home / "reduce.py"
    program.write_text(PROGRAM)
    os.chdir(home)
    print(f"\nStart to the first all-reduce; medians of {rounds} runs that took turns.\n")
    print("| nodes × ranks | torchrun | ddp-launch | ratio |")
    print("|---|---|---|---|")
    ratios = []
    for nodes, each in WORLDS:
        seconds = {TORCHRUN: [], LAUNCH: []}
        for round_ in range(rounds + 1):
            for way, found in seconds.items():
                begin = time.monotonic()
                reduced = re.findall(
                    r"^REDUCED (\S+)$", end(start(way, nodes, each, program)), re.MULTILINE
                )
                if round_:  # the first one warms the caches
                    found.append(max(map(float, reduced)) - begin)
        bare, ours = map(statistics.median, seconds.values())
        ratios.append(ours / bare)
        print(f"| {nodes} × {each} | {bare:.2f} | {ours:.2f} | {ours / bare:.2f} |")
    print(
        f"\nddp-launch takes at most {max(ratios):.2f} × the time of torchrun; at most 0.7:",
        met(max(ratios) <= 0.7),
    )
