"""Run the steps of the GPU pack, each with its own time limit, log and result, and repeat none that
has a result.

A step is a process with its own folder: `log`, `result.json`, and what it writes itself. Nothing of
a step is left when the next one starts. A process that even SIGKILL does not end waits for a
driver; then no other step is started.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.runtime import processes
from hack.gpu.step import NOT_OK, NOT_RUN, Judgement, Result, Step, read
from hack.paths import remove

TERM_S, KILL_S = 20.0, 10.0  # from SIGTERM to SIGKILL, and until a killed process counts as stuck
MOST_AT_ONCE = 8
STOP_S = 0.2  # until a signal is noticed


@dataclass(frozen=True)
class Settings:
    out: Path
    python: str
    deadline: float  # of time.monotonic()
    environment: dict[str, str] = field(default_factory=dict)
    stopped: threading.Event = field(
        default_factory=threading.Event
    )  # what then runs is killed, without a result


def run(
    steps: list[Step], settings: Settings, after: Callable[[list[Result]], None]
) -> list[Result]:
    """Results of all steps. `after` gets those that are known, each time that another one is."""
    processes.adopt_orphans()  # what a step leaves behind becomes a child of this process
    found = {step.name: earlier for step in steps if (earlier := read(settings.out / step.name))}
    waiting = [step for step in steps if step.name not in found]
    stuck = ""
    while waiting and not settings.stopped.is_set():
        group = _next(waiting)
        waiting = waiting[len(group) :]
        if stuck:
            found |= {step.name: Result(step.name, NOT_RUN, stuck) for step in group}
        else:
            found |= _run_together(group, settings)
            if left := clear():
                names = ", ".join(step.name for step in group)
                stuck = f"processes {left} of {names} cannot be killed: the driver hangs; reboot the node"
        after([found[step.name] for step in steps if step.name in found])
    return [
        found.get(step.name) or Result(step.name, NOT_RUN, "the pack was stopped") for step in steps
    ]


def _next(waiting: list[Step]) -> list[Step]:
    """The first step that waits, with those after it that may run at the same time."""
    most = 1 if waiting[0].alone else min(MOST_AT_ONCE, os.cpu_count() or 1)
    group: list[Step] = []
    for step in waiting[:most]:
        if group and step.alone:
            break
        group.append(step)
    return group


def _run_together(group: list[Step], settings: Settings) -> dict[str, Result]:
    with concurrent.futures.ThreadPoolExecutor(len(group)) as pool:
        running = {step.name: pool.submit(run_step, step, settings) for step in group}
        # The kernel may give a signal to another thread; this one runs the handler, but not while
        # it waits for a lock.
        while concurrent.futures.wait(running.values(), STOP_S).not_done:
            pass
        return {name: future.result() for name, future in running.items()}


def run_step(step: Step, settings: Settings) -> Result:
    """Run a step within its limit and the time left. Stores the result, unless the end of the time
    cut the step off.
    """
    left_s = settings.deadline - time.monotonic()
    if left_s < step.seconds:
        return Result(step.name, NOT_RUN, "no time left: start the pack again, it continues here")
    limit_s = min(step.limit_s, left_s)
    folder = settings.out / step.name
    if folder.exists():
        remove(folder)
    folder.mkdir(parents=True)
    places = {"{folder}": str(folder), "{out}": str(settings.out)}
    command = [settings.python, *(_replaced(argument, places) for argument in step.arguments)]
    environment = (
        os.environ | settings.environment | {"TERMINATION_LOG": str(folder / "termination-log")}
    )
    environment |= {"MASTER_PORT": str(free_ports()), **step.environment}
    started = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        code = _wait(process, limit_s, settings.stopped)
    seconds, timed_out = time.monotonic() - started, code is None
    code = process.returncode
    if settings.stopped.is_set() or (timed_out and limit_s < step.limit_s):
        return Result(step.name, NOT_RUN, "cut off by the end of the pack: start it again")
    judgement = _judge(step, folder, code, timed_out)
    result = Result(step.name, judgement.result, judgement.why, code, round(seconds, 1), limit_s, timed_out,
                    shlex.join(command), judgement.figures)  # fmt: skip
    result.write(folder)
    return result


def _replaced(argument: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        argument = argument.replace(name, value)
    return argument


def _wait(process: subprocess.Popen, limit_s: float, stopped: threading.Event) -> int | None:
    """The exit code, or None if the process was ended at the limit, or goes on and the pack is
    stopped.
    """
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(STOP_S, max(0, end - time.monotonic())))
        if stopped.is_set():
            return None
    process.terminate()
    try:
        process.wait(TERM_S)
    except subprocess.TimeoutExpired:
        processes.kill([*processes.descendants(process.pid), process.pid], signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
    return None


def _judge(step: Step, folder: Path, code: int | None, timed_out: bool) -> Judgement:
    if timed_out:
        return Judgement(NOT_OK, f"not done after {step.limit_s:g} s")
    try:
        return step.judge(folder, code)
    except (
        Exception
    ) as error:  # of a report that is missing or has another form: the next steps still run
        return Judgement(NOT_OK, f"{type(error).__name__}: {error}; {last_line(folder)}")


def clear() -> list[int]:
    """Kill what is left of all steps. Returns the processes that cannot be killed."""
    end = time.monotonic() + KILL_S
    while left := [
        pid for pid in processes.descendants(os.getpid()) if processes.state(pid) not in ("", "Z")
    ]:
        if time.monotonic() > end:
            return left
        processes.kill(left, signal.SIGKILL)
        time.sleep(0.05)  # between two checks
    processes.reap()
    return []


def last_line(folder: Path) -> str:
    """The last line of a step's log that is not empty."""
    lines = log_of(folder).splitlines()
    return next(
        (line.strip()[:300] for line in reversed(lines) if line.strip()), "the log is empty"
    )


def log_of(folder: Path) -> str:
    return (folder / "log").read_bytes().decode(errors="replace")


def free_ports() -> int:
    """The first of two adjacent free ports, for torchrun's store and for the launcher: below the
    range from which the kernel takes ports of connections.
    """
    while True:
        port = random.randrange(12000, 32000)
        with (
            contextlib.suppress(OSError),
            socket.create_server(("", port)),
            socket.create_server(("", port + 1)),
        ):
            return port
