"""`make try`: the three tools on this machine, without a cluster, an image or root, in about two
minutes.

Everything that is printed below a line that begins with $ is the output of that command.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from hack.paths import CACHE, REPO, ToolError, main, remove, run, step

ENVIRONMENT = CACHE / "try"
HERE = Path("hack/tryout")
OUT = Path("build/try")
HAS_TORCH = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
HAS_GPUS = "import torch; print(torch.cuda.is_available())"
VERDICTS = [0, 1, 3]  # PASS or WARN, FAIL, INCOMPLETE: whatever this machine is


def entry() -> None:
    if sys.version_info < (3, 11):
        raise ToolError("Python 3.11 or newer is needed, as `python3` on the PATH")
    start = time.monotonic()
    print(
        "The tools of the three charts on this machine, in about 2 minutes. Packages go to",
        ENVIRONMENT,
    )
    packages = [REPO / "worker", REPO / "generator"]
    state = [str(REPO), *((each / "pyproject.toml").read_text() for each in packages)]
    of_this = ENVIRONMENT / ("of-" + hashlib.sha256("\n".join(state).encode()).hexdigest()[:12])
    if not of_this.exists():
        install(
            "./worker ./generator", [], [word for each in packages for word in ("--editable", each)]
        )
        for other in ENVIRONMENT.glob("of-*"):  # the packages are links to one clone
            other.unlink()
        of_this.touch()
    remove(REPO / OUT)
    (REPO / OUT).mkdir(parents=True)
    part(1, "job-group: a group file with two mistakes, and one without, as values of the chart")
    shown("jobgen", "validate", HERE / "group.yaml", codes=[1])
    print("Each mistake has its line, column and code.")
    shown(
        "jobgen",
        "to-values",
        "values-examples/find-each-other/group.yaml",
        "-o",
        OUT / "values.yaml",
        codes=[0],
    )

    if run(ENVIRONMENT / "bin" / "python", "-c", HAS_TORCH).strip() == "False":
        # Python compiles what it imports; pip would compile all of torch.
        locked = REPO / "requirements" / "torch.txt"
        install(
            "torch, about 3 GB", ["--require-hashes", "--no-compile"], ["--requirement", locked]
        )
    part(2, "ddp-run: a training of two ranks hangs. Which one, and where?")
    shown(
        "ddp-launch",
        "--standalone",
        "--nproc-per-node=2",
        "--collective-timeout=10",
        HERE / "hang.py",
        codes=[70],
    )
    print(
        "Rank 1 is at hang.py:11; rank 0 only waited for it. On a cluster every pod ends with this line."
    )

    part(3, "gpu-accept: is this machine fit? First with a fault that is injected, then as it is")
    gpus = run(ENVIRONMENT / "bin" / "python", "-c", HAS_GPUS).strip() == "True"
    device = [] if gpus else ["--device=cpu"]
    fault = ["--check=memory", "--inject=flipped-bit-memory", f"--report-dir={OUT}/faulty"]
    shown("accept-node", *device, *fault, codes=[1])
    print("The fault was found, and which bit it was.")
    shown("accept-node", *device, f"--report-dir={OUT}/reports", codes=VERDICTS)
    page = OUT / "page.html"
    shown(
        "accept-report",
        "merge",
        f"{OUT}/reports",
        "--expect-nodes=1",
        f"--html={page}",
        codes=VERDICTS,
    )
    print(f"\nDone in {time.monotonic() - start:.0f} s. The page of this machine: {REPO / page}")
    print(
        "Next: the same on a cluster of yours (README.md), or on a small one of your own: make demo"
    )


def install(name: str, options: list[str], what: list[str | Path]) -> None:
    """Install packages into an environment of their own, which also has the torch of this Python,
    if any.
    """
    with step(f"pip install {name}"):
        if not (ENVIRONMENT / "bin" / "pip").exists():
            remove(ENVIRONMENT)
            run(sys.executable, "-m", "venv", "--system-site-packages", ENVIRONMENT)
        run(ENVIRONMENT / "bin" / "pip", "install", "--quiet", *options, *what)


def part(number: int, title: str) -> None:
    print(f"\n--- {number} of 3. {title}", flush=True)


def shown(command: str, *arguments: str | Path, codes: list[int]) -> None:
    """Print and run a command. ToolError if its exit code is another than one of `codes`."""
    print(f"\n$ {command} {' '.join(map(str, arguments))}", flush=True)
    env = os.environ | {"PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ENVIRONMENT / "bin" / command, *arguments], cwd=REPO, env=env, stdin=subprocess.DEVNULL
    )
    if done.returncode not in codes:
        raise ToolError(f"{command} exited {done.returncode}, expected was {codes}")


if __name__ == "__main__":
    main(entry)
