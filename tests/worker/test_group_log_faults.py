"""Random programs that print random bytes, under random faults of the agent and of the volume, against an oracle.

GROUP_LOG_RUNS sets the number of runs (GROUP_LOG_SEED the first): 300 take about ten minutes.
"""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.group_agents import Group

pytestmark = pytest.mark.slow
RUNS, SEED = int(os.environ.get("GROUP_LOG_RUNS", 10)), int(os.environ.get("GROUP_LOG_SEED", 0))
FAULTS = ("none", "kill", "kill twice", "EIO", "ENOSPC", "ESTALE", "hang", "pause", "kill and EIO", "EIO to the end")
PROGRAM = """
import os, sys, time
parts = os.path.join({folder!r}, "parts")
for name in sorted(os.listdir(parts)):
    data = open(os.path.join(parts, name), "rb").read()
    while data:
        data = data[os.write(1, data):]
    time.sleep({pause})
if {closes}: os.close(1)
sys.exit({code})
"""


@dataclass
class Case:
    """One random run. `parts` are what the program writes, one after the other."""

    parts: list[bytes]
    pause: float
    closes: bool
    code: int
    fault: str
    after: float  # seconds from the start of the program to the fault
    lasts: float


def case(seed: int) -> Case:
    choose = random.Random(seed)
    parts = [_bytes(choose) for _ in range(choose.randrange(1, 12))]
    return Case(
        parts,
        pause=choose.choice([0, 0.02, 0.1]),
        closes=choose.random() < 0.2,
        code=choose.choice([0, 0, 1, 3, 77]),
        fault=FAULTS[seed % len(FAULTS)],
        after=choose.uniform(0, 0.8),
        lasts=choose.uniform(0.1, 1.5),
    )


def _bytes(choose: random.Random) -> bytes:
    size = choose.choice([1, 100, 5000, 70_000, 400_000])
    kind = choose.randrange(5)
    if kind == 0:
        return choose.randbytes(size)
    if kind == 1:
        return b"".join(b"line %d\n" % number for number in range(size // 8))
    if kind == 2:
        return b"\r" + b"#" * size  # a progress bar
    if kind == 3:
        return b"\0\n\r\xff"[: choose.randrange(1, 5)] * (size // 4 + 1)
    return b"\n" * min(size, 20_000)


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_the_output_arrives_and_the_exit_code_is_kept(tmp_path, seed):
    run = case(seed)
    group = Group(tmp_path)
    group.logs = tmp_path / "logs"
    group.write_plan({"a": {}})
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(run.parts):
        (tmp_path / "parts" / f"{number:03}").write_bytes(part)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path), pause=run.pause, closes=run.closes, code=run.code))
    rank = group.start_rank("a-0", f"{sys.executable} {program}")
    try:
        rank.until_output("starts attempt")
        time.sleep(run.after)  # the fault comes at a random moment
        inject(run, rank, group)
        assert rank.main.wait(60) == run.code
        rank.sidecar.terminate()
        rank.sidecar.wait(40)
    finally:
        rank.lose()
    check(run, rank, b"".join(run.parts))


def inject(run: Case, rank, group: Group) -> None:
    """Start the fault, and end it after its time."""
    if "kill" in run.fault:
        for _ in range(1 + ("twice" in run.fault)):
            rank.kill_agent()
            time.sleep(run.lasts / 2)
            rank.start_agent()
    if number := next((getattr(errno, name) for name in ("EIO", "ENOSPC", "ESTALE") if name in run.fault), 0):
        fail(group, number)
    if run.fault == "hang":
        fail(group, 0)
    if run.fault == "pause":
        subprocess.run(["kill", "-STOP", str(rank.sidecar.pid)], check=True)
    if run.fault not in ("none", "EIO to the end"):
        time.sleep(run.lasts)
        group.fault.unlink(missing_ok=True)
    if run.fault == "pause":
        subprocess.run(["kill", "-CONT", str(rank.sidecar.pid)], check=True)


def fail(group: Group, number: int) -> None:
    scratch = group.fault.with_suffix(".new")
    scratch.write_text(str(number))
    scratch.replace(group.fault)  # at once, so that the agent never reads half a number


def check(run: Case, rank, expected: bytes) -> None:
    """The container's log has every byte in order; the copy has them, or says how many are missing."""
    log = (rank.root / "task").read_bytes()
    log, news = re.subn(rb"\[GROUP\] node=a-0 log_copy=failing[^\n]*\n", b"", log)  # anywhere, even inside a line
    assert news <= 1
    assert expected in log, "every byte in order in the rank's own log"
    files: list[Path] = list((rank.group.logs).glob("rl-1/*.log"))
    copied = b"".join(line + b"\n" for line in rank.kept_lines()) if files and files[0].stat().st_size else b""
    if run.fault == "EIO to the end":
        assert b"log_copy=incomplete" in log or expected in copied
        assert copied.removesuffix(b"\n") in log, "the copy is a part of the log, in order"
    else:
        assert expected in copied, f"{run.fault}: the copy has every byte in order"
