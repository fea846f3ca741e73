"""Benchmark of ddp-launch, as ratios: its start against torchrun's, and a restart in place against a new start."""

from __future__ import annotations

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
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print(f"\\nREDUCED {time.monotonic()}", flush=True)
if sys.argv[1:] and not os.path.exists(sys.argv[1]):
    dist.barrier()
    if dist.get_rank() == 1:
        open(sys.argv[1], "w").close()
        print(f"\\nFAILED {time.monotonic()}", flush=True)
        os._exit(3)
    dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d")
LAUNCH = (sys.executable, "-m", "gpuworker.launch.launcher")
WORLDS = ((1, 2), (2, 2))  # nodes, ranks of each
LIMIT_S = 180


def start(way: tuple[str, ...], nodes: int, each: int, *arguments: object) -> list[subprocess.Popen]:
    """One launcher per node, all on this machine."""
    port = free_port(2)
    started = []
    for node in range(nodes):
        flags = [f"--nnodes={nodes}", f"--nproc-per-node={each}", f"--node-rank={node}"]
        if way is TORCHRUN:
            flags += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
        else:
            flags += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        command = [*way, *flags, *map(str, arguments)]
        started.append(
            subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    return started


def end(started: list[subprocess.Popen], wanted: int = 0) -> str:
    """The output of all, which must end with the code."""
    output = "".join(each.communicate(timeout=LIMIT_S)[0] for each in started)
    if any(each.returncode != wanted for each in started):
        raise ToolError(f"exit codes {[each.returncode for each in started]}:\n{output}")
    return output


def at(word: str, output: str) -> list[float]:
    return sorted(float(text) for text in re.findall(rf"^{word} (\S+)$", output, re.MULTILINE))


def starts(rounds: int, program: Path) -> None:
    """Seconds from the start of the launchers to the end of the first all-reduce on all ranks."""
    print(f"\nStart to the first all-reduce; medians of {rounds} runs that took turns.\n")
    print("| nodes × ranks | torchrun | ddp-launch | ratio |")
    print("|---|---|---|---|")
    ratios = []
    for nodes, each in WORLDS:
        seconds = {TORCHRUN: [], LAUNCH: []}
        for round_ in range(rounds + 1):
            for way, found in seconds.items():
                begin = time.monotonic()
                taken = at("REDUCED", end(start(way, nodes, each, program)))[-1] - begin
                found += [taken] * bool(round_)  # the first round warms the caches
        bare, ours = map(statistics.median, seconds.values())
        ratios.append(ours / bare)
        print(f"| {nodes} × {each} | {bare:.2f} | {ours:.2f} | {ours / bare:.2f} |")
    print(f"\nddp-launch takes at most {max(ratios):.2f} × the time of torchrun; at most 0.7:", met(max(ratios) <= 0.7))


def restarts(rounds: int, program: Path) -> None:
    """Seconds from a rank's failure to the next first all-reduce: in place, and with new launchers at once.

    `python -m tests.baseline restarts` compares with new pods.
    """
    found: dict[str, list[float]] = {"in place": [], "new processes": []}
    for round_ in range(rounds):
        mark = program.with_name(f"failed-in-place-{round_}")
        output = end(start(LAUNCH, 2, 1, "--max-restarts=1", program, mark))
        found["in place"].append(at("REDUCED", output)[-1] - at("FAILED", output)[0])
        mark = program.with_name(f"failed-{round_}")
        failed = end(start(LAUNCH, 2, 1, program, mark), wanted=1)
        output = end(start(LAUNCH, 2, 1, program, mark))
        found["new processes"].append(at("REDUCED", output)[-1] - at("FAILED", failed)[0])
    in_place, anew = map(statistics.median, found.values())
    print(f"\nFrom a failure to the next first all-reduce of 2 × 1 ranks; medians of {rounds} runs that took turns:")
    print(f"in place {in_place:.2f} s, new launchers {anew:.2f} s, ratio {in_place / anew:.2f}")


def met(goal: bool) -> str:
    return "met" if goal else "MISSED"


def measure(rounds: int, home: Path) -> None:
    program = home / "reduce.py"
    program.write_text(PROGRAM)
    os.chdir(home)
    starts(rounds, program)
    restarts(rounds, program)
