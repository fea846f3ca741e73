"""Trainings that are stopped or killed anywhere under ddp-launch, then resumed: python -m tests.bench.train_kills.

Arguments: runs per program and world, seed. A third are stopped by SIGTERM, the others killed with SIGKILL, of which
half amid a save, on a disk that takes a while. The oracle is a run that nothing disturbs: weights and optimizer must
have the same bits, and the checkpoint that is taken must be the newest.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.helpers.processes import SOURCE, descendants, environment, free_port
from tests.helpers.train_runs import LM, SMOKE, hashes, language_model

PROGRAM = """
import os, random, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
import MODULE as program
register_optimizer_step_post_hook(lambda *_: time.sleep(0.02))
sync = os.fsync
def slow(descriptor):
    print("[SYNC]", flush=True)
    time.sleep(random.random() * float(os.environ["SYNC_S"]))
    return sync(descriptor)
os.fsync = slow
from gpuworker.runtime.process_group import exit_now
exit_now(program.main(sys.argv[1:]))
"""


def start(folder: Path, module: str, flags: tuple, world: int, sync_s: float) -> subprocess.Popen:
    program = folder.parent / f"{module.rpartition('.')[2]}.py"
    program.write_text(PROGRAM.replace("MODULE", module))
    env = environment(NNODES=1, NODE_RANK=0, NPROC_PER_NODE=world, MASTER_ADDR="localhost", MASTER_PORT=free_port(2),
                      RUN_ID="run", ATTEMPT=0, SYNC_S=sync_s, HF_HUB_OFFLINE=1,
                      PYTHONPATH=f"{SOURCE}:{SOURCE.parents[1]}")  # fmt: skip
    command = [sys.executable, "-m", "gpuworker.launch.launcher", "--", program, "--output", folder, *flags]
    return subprocess.Popen([*map(str, command)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until_end(process: subprocess.Popen, pattern: str, act) -> tuple[int, str]:
    """Exit code and output; `act` is called once a line matches the pattern."""
    text, acted = "", False
    for line in process.stdout:
        text += line
        if not acted and re.search(pattern, line):
            acted = True
            act()
    return process.wait(), text


def kill(process: subprocess.Popen) -> None:
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGKILL)


def newest(run: Path) -> str:
    def age(path: Path) -> tuple[str, str]:
        return path.name[:10], path.name[10:] or "~"

    return max(run.glob("epoch-*"), key=age).name if list(run.glob("epoch-*")) else "no"


def check(folder: Path, module: str, flags: tuple, world: int, number: int, steps: int) -> str:
    """What differs from the oracle, or nothing."""
    how = ("TERM", "KILL", "SAVE")[number % 3]
    step = random.randrange(1, steps - 1)
    first = start(folder, module, flags, world, 0.3 if how == "SAVE" else 0.0)
    pattern = rf"^\[STEP\] .*\bstep={step}\b" if how != "SAVE" else r"^\[SYNC\]"
    # Before the run ends: a step takes 0.02 s.
    longest = 0.3 * random.randrange(1, 8) if how == "SAVE" else 0.02 * (steps - step - 1)

    def act() -> None:
        time.sleep(random.random() * longest)
        first.send_signal(signal.SIGTERM) if how == "TERM" else kill(first)

    code, text = until_end(first, pattern, act)
    if code != (75 if how == "TERM" else -9):
        return f"{how} at step {step}: exit code {code}\n{text}"
    taken = newest(folder / "run")
    code, text = until_end(start(folder, module, flags, world, 0.0), "$^", None)
    if code:
        return f"{how} at step {step}: the next start ends with {code}\n{text}"
    if f" resumed={taken} " not in text.replace("\n", " "):
        return f"{how} at step {step}: the newest is {taken}\n{text}"
    if [path.name for path in (folder / "run").iterdir() if path.name.startswith((".saving", "checkpoint-"))]:
        return f"{how} at step {step}: a part is left"
    return ""


def main() -> int:
    runs, seed = int(sys.argv[1]), int(sys.argv[2])
    random.seed(seed)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        small = ("--samples", 1000, "--features", 16, "--save-every", 3)
        programs = {SMOKE: (small, 32), LM: ((*language_model(root), "--epochs", 2, "--save-every", 3,
                                              "--set", "logging_steps=1"), 34)}  # fmt: skip
        for module, (flags, steps) in programs.items():
            for world in (1, 2, 4):
                own = (*flags, "--batch", 64 // world if module == SMOKE else 8)
                whole = root / f"{module}-{world}"
                code, text = until_end(start(whole, module, own, world, 0.0), "$^", None)
                assert code == 0, text
                good = 0
                for number in range(runs):
                    folder = root / f"{module}-{world}-{number}"
                    problem = check(folder, module, own, world, number, steps)
                    if not problem and hashes(folder, "epoch-0002") != hashes(whole, "epoch-0002"):
                        problem = "other bits"
                    good += not problem
                    if problem:
                        print(f"seed {seed} run {number} of {module} on {world}: {problem}", flush=True)
                failed += runs - good
                print(f"{module.rpartition('.')[2]} ranks={world} equal={good} of={runs}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
