"""Run everything that needs a GPU on a bare machine: python3 -m hack.gpu [--device cpu] [--only
NAME…].

It needs a checkout and a Python with torch; no network, no installation, no Kubernetes. Training
also needs the package transformers, else its steps do not apply. Every step has its folder below
--out, with log and result.json. A step that has a result is not repeated, so the same command
continues after an interruption. summary.md and summary.json are written after every step. --device
cpu is a dry run with tiny sizes. Exit code 0: every step ended as expected; 1: at least one did
not; 2: it cannot start; 3: at least one was not run.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from hack.paths import CACHE, REPO, ToolError, main

sys.path.insert(0, str(REPO / "worker" / "src"))

from gpuworker.runtime import machine
from hack.gpu import runner, step, steps, summary

SOURCES = (REPO, REPO / "worker" / "src")


def entry() -> None:
    parser = make_parser()
    args = parser.parse_args()
    gpus = 0
    if args.device == "cuda":
        names, problem = machine.visible_gpus()
        gpus = args.gpus or len(names or ())
        if not gpus:
            parser.error(
                f"no GPU is visible{f': {problem}' if problem else ''}; use --device cpu for a dry run"
            )
    elif args.gpus:
        parser.error("--gpus is not for --device cpu")
    every = steps.steps(args.device, gpus)
    if unknown := [
        each for each in args.only if not fnmatch.filter([step.name for step in every], each)
    ]:
        parser.error(f"no step is called {unknown[0]}; --list prints them")
    chosen = [
        each for each in every if any(fnmatch.fnmatch(each.name, pattern) for pattern in args.only)
    ]
    if args.list:
        print("\n".join(each.name for each in chosen))
        return
    out = (args.out or REPO / "build" / f"gpu-{args.device}").resolve()
    try:
        lock = prepare(out, args.device, gpus)
        python = interpreter()
    except (OSError, ToolError) as error:
        parser.error(f"{error}")
    deadline = time.monotonic() + args.seconds
    settings = runner.Settings(out, python, deadline, environment(args.device))
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: (received.append(number), settings.stopped.set()))
    with lock:
        results = runner.run(chosen, settings, Progress(len(chosen), out))
    if received:
        sys.exit(128 + received[0])
    summary.write(results, len(chosen), out)
    print(f"{summary.counts(results, len(chosen))}; {out / 'summary.md'}")
    found = {each.result for each in results}
    sys.exit(1 if step.NOT_OK in found else 3 if step.NOT_RUN in found else 0)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m hack.gpu", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cuda", help="cpu: a dry run with tiny sizes")
    add("--gpus", type=natural, default=0, help="GPUs to test (default: all that are visible)")
    add("--out", type=Path, help="folder of all reports (build/gpu-DEVICE)")
    add(
        "--seconds",
        type=natural,
        default=1200,
        help="after which no step is started and the running one ends (1200)",
    )
    add(
        "--only",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help="steps, such as train-* (default: all)",
    )
    add("--list", action="store_true", help="print the names of the steps")
    return parser


def natural(text: str) -> int:
    """For argparse: 1 or more."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def interpreter() -> str:
    """A Python with torch: the one that runs this, else that of the tests."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    if (found := CACHE / "venv" / "bin" / "python").exists():
        return str(found)
    raise ToolError(
        "this Python has no torch: use one that has, or run `python3 -m hack.deps.venv dev torch train`"
    )


def prepare(out: Path, device: str, gpus: int) -> TextIO:
    """Make the folder of all steps. Returns the lock of the folder."""
    out.mkdir(parents=True, exist_ok=True)
    mark, wanted = out / "pack.json", json.dumps({"device": device, "gpus": gpus}) + "\n"
    lock = mark.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ToolError(f"{out}: another pack runs there; set another --out") from None
    if (found := mark.read_text()) not in ("", wanted):
        raise ToolError(f"{out}: it has reports of {found.strip()}; set another --out")
    mark.write_text(wanted)
    return lock


def environment(device: str) -> dict[str, str]:
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    paths = ":".join([*map(str, SOURCES), *inherited])
    found = {
        "PYTHONPATH": paths,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
    return found | (
        {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if device == "cpu" else {}
    )


class Progress:
    """Writes the summary and prints one line whenever a step has ended."""

    def __init__(self, expected: int, out: Path) -> None:
        self.expected, self.out, self.printed = expected, out, set()

    def __call__(self, known: list[step.Result]) -> None:
        summary.write(known, self.expected, self.out)
        for each in known:
            if each.name not in self.printed:
                self.printed.add(each.name)
                code = "" if each.exit_code is None else f"exit code {each.exit_code}, "
                count = f"[{len(self.printed)}/{self.expected}]"
                print(
                    f"{count} {each.name}: {each.result}, {code}{each.seconds:.0f} s  {each.why}",
                    flush=True,
                )


if __name__ == "__main__":
    main(entry)
