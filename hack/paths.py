"""Paths, progress output and command execution of the development tools."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent

# Everything that is built once and reused lives here; deleting it costs time only.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-charts"
BIN = CACHE / "bin"


class ToolError(Exception):
    """A failure with a remedy; printed without a traceback."""


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print the name of a step and, at its end, its duration."""
    print(f"==> {what}", flush=True)
    start = time.monotonic()
    yield
    print(f"    {what}: done in {time.monotonic() - start:.0f} s", flush=True)


def run(*command: str | Path, **options) -> str:
    """Run a command; return its stdout, or raise ToolError with the end of its output."""
    argv = [str(part) for part in command]
    options.setdefault("input", "")  # never wait for a terminal
    done = subprocess.run(argv, capture_output=True, text=True, **options)
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines()[-25:]
        raise ToolError(f"`{' '.join(argv)}` exited {done.returncode}:\n  " + "\n  ".join(output))
    return done.stdout


@contextlib.contextmanager
def built_once(target: Path) -> Iterator[Path]:
    """Yield a scratch path that becomes `target` only if the block succeeds.

    A killed build leaves the scratch path, never an incomplete target; the next build removes it.
    """
    scratch = target.with_name(target.name + ".partial")
    remove(scratch)
    target.parent.mkdir(parents=True, exist_ok=True)
    yield scratch
    remove(target)
    scratch.rename(target)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unmount_below(folder: Path) -> None:
    """Unmount everything below a folder that is about to be removed, so that the mounted content
    stays.
    """
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed(mounted):
        if Path(point).is_relative_to(folder):
            run("umount", point)


def between(text: str, first: str, last: str, new: str) -> str:
    """The text with other content between two marks."""
    before, rest = text.split(first)
    return f"{before}{first}{new}{last}{rest.split(last)[1]}"


def main(entry) -> None:
    """Run a tool's entry point; turn ToolError into one message and exit code 1."""
    try:
        entry()
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
