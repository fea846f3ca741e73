"""Benchmarks as ratios of commands that run in turn: python -m tests.bench [ROUNDS] [jobgen]
[launch].
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from hack.deps.venv import SKYPILOT
from hack.paths import REPO, ToolError, main
from tests.bench import launch
from tests.bench.launch import met

SIZES = (10, 100, 1_000, 10_000)
TASK = """---
name: task-{number}
num_nodes: 2
resources: {{infra: kubernetes, cpus: 4+, memory: 16+, accelerators: "H100:8", image_id: "docker:python:3.12"}}
envs: {{MODEL: tiny, EPOCHS: 3, SEED: {number}}}
setup: pip install -r requirements.txt
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --node-rank=$SKYPILOT_NODE_RANK train.py --seed $SEED
"""


class Run(NamedTuple):
    seconds: float  # wall time
    cpu: float  # seconds on all cores, nearly independent of other load
    megabytes: float  # peak


def run(command: list, home: Path) -> Run:
    """Run a command once; it must succeed."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(REPO / "generator" / "src"),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    with process:
        output = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ToolError(f"{' '.join(map(str, command))} exited {process.returncode}:\n{output}")
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def medians(commands: dict, rounds: int, home: Path) -> dict:
    """Return the medians of each command. The commands take turns, so that other load affects all
    of them.
    """
    runs: dict = {name: [] for name in commands}
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            one = run(command, home)
            if round_:  # the first round warms the caches
                runs[name].append(one)
    return {
        name: Run(*map(statistics.median, zip(*each, strict=True))) for name, each in runs.items()
    }


def group(size: int, home: Path) -> Path:
    file = home / f"{size}.yaml"
    file.write_text(
        "name: rl\nexecution: parallel\n" + "".join(TASK.format(number=n) for n in range(size))
    )
    return file


def cold(rounds: int, home: Path):
    small = group(4, home)
    load = f"from sky.utils import dag_utils; dag_utils.load_job_group_from_yaml({str(small)!r})"
    imported = "import yaml, jsonschema, click"
    commands = {
        "jobgen to-values": [sys.executable, "-m", "jobgen", "to-values", small],
        "python -c 'import yaml, jsonschema, click'": [sys.executable, "-c", imported],
        "python -c ''": [sys.executable, "-c", ""],
        "SkyPilot's loader": [SKYPILOT / "bin" / "python", "-c", load],
    }
    found = medians(commands, rounds, home)
    print(
        f"A group of four tasks with two nodes each; medians of {rounds} cold runs that took turns.\n"
    )
    print("| command | seconds | seconds of CPU | MB |")
    print("|---|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {each.seconds:.3f} | {each.cpu:.3f} | {each.megabytes:.0f} |")
    jobgen, imports, _, skypilot = found.values()
    print(
        f"\njobgen takes {jobgen.cpu / imports.cpu:.2f} × the CPU of the imports; at most 1.3:",
        end=" ",
    )
    print(met(jobgen.cpu / imports.cpu <= 1.3))
    print(
        f"SkyPilot's loader takes {skypilot.cpu / jobgen.cpu:.1f} × the CPU of jobgen; at least 20:",
        end=" ",
    )
    print(met(skypilot.cpu / jobgen.cpu >= 20))


def curve(rounds: int, home: Path):
    commands = {
        size: [sys.executable, "-m", "jobgen", "to-values", group(size, home)] for size in SIZES
    }
    runs = medians(commands, rounds, home)
    print(f"\nGroups of growing size; medians of {rounds} cold runs that took turns.\n")
    print("| tasks | seconds | seconds of CPU | ms of CPU for each further task | MB |")
    print("|---|---|---|---|---|")
    least = SIZES[0]
    each_further = {n: (runs[n].cpu - runs[least].cpu) / (n - least) * 1000 for n in SIZES[1:]}
    for n, each in runs.items():
        further = f"{each_further[n]:.2f}" if n in each_further else ""
        print(f"| {n:,} | {each.seconds:.2f} | {each.cpu:.2f} | {further} | {each.megabytes:.0f} |")
    large, growth = runs[1_000], each_further[10_000] / each_further[1_000]
    print(
        f"\n1,000 tasks: at most 0.6 s of CPU: {met(large.cpu <= 0.6)}; at most 60 MB: {met(large.megabytes <= 60)}"
    )
    print(
        f"A task of 10,000 costs {growth:.2f} × a task of 1,000; at most 1.3: {met(growth <= 1.3)}"
    )


def entry():
    words = sys.argv[1:]
    rounds = int(words.pop(0)) if words and words[0].isdecimal() else 11
    with tempfile.TemporaryDirectory() as home:
        if "jobgen" in words or not words:
            cold(rounds, Path(home))
            curve(max(3, rounds // 2), Path(home))
        if "launch" in words or not words:
            launch.measure(max(3, rounds // 2), Path(home))


if __name__ == "__main__":
    main(entry)
