"""How fast jobgen is, as ratios of commands run in turn: python -m tests.bench [ROUNDS]."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.paths import REPO, ToolError, main
from tools.venv import SKYPILOT

RL = REPO / "tests" / "bench" / "rl.yaml"
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


@dataclass
class Run:
    seconds: float
    megabytes: float


def run(*command: object, home: Path) -> Run:
    """One run of a command that must succeed: wall time and peak memory."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(REPO / "generator" / "src"),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    with process:
        said = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ToolError(f"{' '.join(map(str, command))} exited {process.returncode}:\n{said}")
    return Run(time.perf_counter() - start, usage.ru_maxrss / 1024)


def cold(rounds: int, home: Path) -> dict[str, float]:
    """Median seconds of each command; they take turns, so that a busy moment hits all of them."""
    load = f"from sky.utils import dag_utils; dag_utils.load_job_group_from_yaml({str(RL)!r})"
    commands = {
        "jobgen": (sys.executable, "-m", "jobgen", "to-values", RL),
        "imports": (sys.executable, "-c", "import yaml, jsonschema, click"),
        "python": (sys.executable, "-c", ""),
        "skypilot": (SKYPILOT / "bin" / "python", "-c", load),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            seconds = run(*command, home=home).seconds
            if round_:  # the first one warms the caches
                times[name].append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def group(tasks: int) -> str:
    return "name: rl\nexecution: parallel\n" + "".join(TASK.format(number=number) for number in range(tasks))


def curve(rounds: int, home: Path) -> dict[int, Run]:
    """Median of a cold run on groups of growing size."""
    runs: dict[int, list[Run]] = {size: [] for size in SIZES}
    for size in SIZES:
        (home / f"{size}.yaml").write_text(group(size))
    for _ in range(rounds):
        for size, each in runs.items():
            each.append(run(sys.executable, "-m", "jobgen", "to-values", home / f"{size}.yaml", home=home))
    return {
        size: Run(*(statistics.median(getattr(one, field) for one in each) for field in ("seconds", "megabytes")))
        for size, each in runs.items()
    }


def met(goal: bool) -> str:
    return "met" if goal else "MISSED"


def entry() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 11
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        seconds = cold(rounds, home)
        print(f"Cold run on the seven-pod group {RL.relative_to(REPO)}; medians of {rounds} runs that took turns.\n")
        imports, skypilot = seconds["jobgen"] / seconds["imports"], seconds["skypilot"] / seconds["jobgen"]
        print("| command | seconds | |")
        print("|---|---|---|")
        print(f"| jobgen to-values | {seconds['jobgen']:.3f} | |")
        print(
            f"| python -c 'import yaml, jsonschema, click' | {seconds['imports']:.3f} "
            f"| jobgen takes {imports:.2f} × as long; at most 1.3: {met(imports <= 1.3)} |"
        )
        print(f"| python -c '' | {seconds['python']:.3f} | |")
        print(
            f"| SkyPilot's loader | {seconds['skypilot']:.3f} "
            f"| takes {skypilot:.1f} × as long as jobgen; at least 15: {met(skypilot >= 15)} |"
        )
        runs = curve(max(3, rounds // 3), home)
        print(f"\nGroups of growing size; medians of {max(3, rounds // 3)} runs that took turns.\n")
        print("| tasks | seconds | ms for each further task | MB |")
        print("|---|---|---|---|")
        for size, each in runs.items():
            more = "" if size == SIZES[0] else f"{marginal(runs, size):.2f}"
            print(f"| {size:,} | {each.seconds:.2f} | {more} | {each.megabytes:.0f} |")
        large, growth = runs[1_000], marginal(runs, 10_000) / marginal(runs, 1_000)
        print(f"\n1,000 tasks: at most 1 s {met(large.seconds <= 1)}, at most 150 MB {met(large.megabytes <= 150)}.")
        print(f"A task of 10,000 costs {growth:.2f} × a task of 1,000; at most 1.3: {met(growth <= 1.3)}.")


def marginal(runs: dict[int, Run], size: int) -> float:
    """Milliseconds that each task adds to those of the smallest group."""
    least = SIZES[0]
    return (runs[size].seconds - runs[least].seconds) / (size - least) * 1000


if __name__ == "__main__":
    main(entry)
