"""Where a rank is: the innermost line of the user's program in a stack of faulthandler, and what it waits in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpuworker.launch.rank_wrapper import LIBRARY

FRAME = re.compile(r'^ +File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)
THREAD = re.compile(r"^(?:Current thread|Thread) ", re.MULTILINE)
# Innermost frames of a rank that waits for other ranks: Python calls into c10d, and backward, whose hooks reduce.
COLLECTIVE = re.compile(r"/torch/distributed/")
BACKWARD = "_engine_run_backward"
SKIPPED = ("wrapper", "inner", "__torch_function__")  # decorators between the program and a collective


@dataclass(frozen=True)
class Location:
    """`place`: file:line in function, of the program. `waits_in`: a collective, or empty. `inside`: a library call."""

    place: str
    waits_in: str = ""
    inside: str = ""

    def __str__(self) -> str:
        if self.waits_in:
            return f"waits in {self.waits_in} at {self.place}"
        return f"is at {self.place}" + (f" (in {self.inside})" if self.inside else "")


def parse(text: str) -> Location | None:
    """Location of the main thread in a dump of faulthandler; None if it has no frame."""
    parts = THREAD.split(text)
    current = [part for part in parts if "rank_wrapper.py" in part] or parts[-1:]
    return locate([(file, int(line), name) for file, line, name in FRAME.findall(current[-1])])


def locate(frames: list[tuple[str, int, str]]) -> Location | None:
    """`frames`: file, line and function, the innermost first."""
    frames = [frame for frame in frames if not frame[0].endswith("/rank_wrapper.py") and "runpy" not in frame[0]]
    if not frames:
        return None
    own = next((index for index, (file, _, _) in enumerate(frames) if not LIBRARY.search(file)), len(frames) - 1)
    file, line, name = frames[own]
    place = f"{os.path.basename(file)}:{line} in {name}"
    inner = frames[:own]
    calls = [function for path, _, function in inner if COLLECTIVE.search(path) and function not in SKIPPED]
    if inner and COLLECTIVE.search(inner[0][0]) and calls:
        return Location(place, waits_in=calls[-1])
    if any(function == BACKWARD for _, _, function in inner[:2]):
        return Location(place, waits_in="backward")
    return Location(place, inside=f"{os.path.basename(inner[0][0])}:{inner[0][2]}" if inner else "")
