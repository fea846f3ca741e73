"""Where a rank is: from the stacks that its hook has sent to one line, and a table of all ranks.

A frame is [file, line, function]; the innermost of a stack is first.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from gpuworker.launch.protocol import RankReport

LIBRARY = re.compile(r"/lib(64)?/python3|site-packages|dist-packages|^<frozen|^<string>$")
STANDARD = re.compile(r"/lib(64)?/python3[^/]*/(?!site-packages|dist-packages)|^<frozen")
COLLECTIVE = re.compile(r"/torch/distributed/")
IMPORT = re.compile(r"^<frozen importlib")
# A thread that waits for another thread, or for work.
IDLE = re.compile(r"/(threading|queue|selectors|socketserver)\.py$|/concurrent/futures/")
BACKWARD = "_engine_run_backward"
# Between a program and a collective.
SKIPPED = ("wrapper", "inner", "__torch_function__", "__call__")
RANKS_NAMED, PLACES_NAMED = 8, 8


@dataclass(frozen=True)
class Location:
    """`place`: file:line in function, of the program."""

    place: str = ""
    waits_in: str = ""  # a collective
    inside: str = ""  # a call of a library
    importing: bool = False


def own_frame(frames: list[list], program: str = "") -> int:
    """Index of the innermost frame of the program. `program`: the file of its main module.

    A program that is an installed package has no other frames than a library's: its own are those
    of the main module's folder; without any, the innermost outside Python's standard library.
    """
    home = os.path.dirname(program)
    tests = (
        lambda file: not LIBRARY.search(file),
        lambda file: bool(home) and file.startswith(home + "/"),
        lambda file: not STANDARD.search(file),
    )
    for is_own in tests:
        for index, (file, _, _) in enumerate(frames):
            if is_own(file):
                return index
    return len(frames) - 1


def format_frame(frame: list) -> str:
    return f"{os.path.basename(frame[0])}:{frame[1]} in {frame[2]}"


def locate(frames: list[list], program: str = "") -> Location:
    """Location of one thread."""
    if not frames:
        return Location()
    own = own_frame(frames, program)
    place, inner = format_frame(frames[own]), frames[:own]
    calls = [name for file, _, name in inner if COLLECTIVE.search(file) and name not in SKIPPED]
    # A functional collective waits in a call of torch._ops.
    innermost = next((file for file, _, _ in inner if not file.endswith("/torch/_ops.py")), "")
    if calls and COLLECTIVE.search(innermost):
        return Location(place, waits_in=calls[-1])
    if any(name == BACKWARD for _, _, name in inner[:2]):
        return Location(place, waits_in="backward")
    importing = any(IMPORT.search(file) for file, _, _ in frames)
    inside = f"{os.path.basename(inner[0][0])}:{inner[0][2]}" if inner else ""
    return Location(place, inside=inside, importing=importing)


def working_thread(threads: list[dict]) -> dict:
    """The thread that does the program's work: the main one, unless it only waits for others."""
    main = next((each for each in threads if each["main"]), threads[0])
    if not IDLE.search(main["stack"][0][0]):
        return main
    others = [each for each in threads if each is not main and not IDLE.search(each["stack"][0][0])]
    return next((each for each in others if own_thread(each)), main)


def own_thread(thread: dict) -> bool:
    return any(not LIBRARY.search(file) for file, _, _ in thread["stack"])


def has_ended(threads: list[dict]) -> bool:
    """Whether the main program has ended: nothing of it is on the main thread's stack any more."""
    main = next((each for each in threads if each["main"]), None)
    if not main:
        return False
    file, _, name = main["stack"][-1]  # importlib: Python itself is still starting
    return name not in ("<module>", "_run_module_as_main") and not IMPORT.search(file)


def describe(report: RankReport) -> str:
    """What a rank does, in words; the rank itself is not named."""
    if report.failure and report.place:
        failed = "timed out" if report.failure.cause == "collective-timeout" else "failed"
        return f"{failed} at {report.place}"
    if report.code is not None:
        return f"has ended {ended(report.code)}"
    threads = ", ".join(report.threads) or "its exit handlers"
    words = {
        "stopped": "is stopped by a signal (SIGSTOP)",
        "silent": f"does not answer{f' ({report.inside})' if report.inside else ''}",
        "ending": f"has left its main program, which waits for {threads}",
        "importing": f"still imports modules at {report.place}",
    }.get(report.state)
    if not words and report.waits_in:
        words = f"waits in {report.waits_in} at {report.place}"
    words = words or f"is at {report.place}{f' (in {report.inside})' if report.inside else ''}"
    return words + (f", and handles {report.flying.reason}" if report.flying else "")


def ended(code: int) -> str:
    return f"by {signal_name(-code)}" if code < 0 else f"with {code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def table(reports: dict[int, tuple[RankReport, str]]) -> list[str]:
    """A line per place, ranks at the same place together, those that do not wait first.

    `reports`: rank -> its report and the name of its node.
    """
    together: dict[str, list[int]] = {}
    for rank, (report, _) in sorted(reports.items()):
        together.setdefault(describe(report), []).append(rank)
    waiting = {
        words
        for words, ranks in together.items()
        if reports[ranks[0]][0].waits_in
        or (reports[ranks[0]][0].failure and words.startswith("timed"))
    }
    lines = [line for line in (behind(reports), different(reports)) if line]
    if len(waiting) > 1 and len(waiting) == len(together):
        lines.append("ranks wait in different collectives")
    order = sorted(
        together, key=lambda words: (words in waiting, len(together[words]), together[words][0])
    )
    for words in order[:PLACES_NAMED]:
        ranks = together[words]
        if len(ranks) == 1:
            lines.append(f"rank {ranks[0]} of {reports[ranks[0]][1]} {words}")
        else:
            lines.append(f"{len(ranks)} ranks ({named(ranks)}): {words}")
    if len(order) > PLACES_NAMED:
        lines.append(f"{len(order) - PLACES_NAMED} more places")
    return lines


def named(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:RANKS_NAMED])) + (", …" if len(ranks) > RANKS_NAMED else "")


def behind(reports: dict[int, tuple[RankReport, str]]) -> str:
    """Ranks that have started fewer collectives of a group than others, which wait for them."""
    counts: dict[str, dict[int, int]] = {}
    for rank, (report, _) in sorted(reports.items()):
        for group, number in report.groups.items():
            counts.setdefault(group, {})[rank] = number
    for group, numbers in sorted(counts.items()):
        most = max(numbers.values())
        late = [f"rank {rank} ({number})" for rank, number in numbers.items() if number < most]
        if late:
            which = f"collectives of process group {group}"
            named = ", ".join(late[:RANKS_NAMED])
            return f"behind the others, which have started {most} {which}: {named}"
    return ""


def different(reports: dict[int, tuple[RankReport, str]]) -> str:
    """Ranks whose collective of the same number differs in operation, sizes or types."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for rank, (report, _) in sorted(reports.items()):
        for group, last in report.last.items():
            words = f"{last.get('op')} of {last.get('sizes')} {last.get('types')}"
            found.setdefault((group, str(last.get("number"))), {}).setdefault(words, []).append(
                rank
            )
    for (group, number), kinds in sorted(found.items()):
        if len(kinds) > 1:
            each = "; ".join(f"rank {named(ranks)}: {words}" for words, ranks in kinds.items())
            return f"collective {number} of process group {group} differs: {each}"
    return ""


def whole(reports: dict[int, tuple[RankReport, str]]) -> str:
    """The stacks of all ranks, equal ones together, the ranks that are alone first."""
    together: dict[str, list[int]] = {}
    for rank, (report, _) in sorted(reports.items()):
        lines = [describe(report)]
        for thread in report.frames:
            main = "main thread" if thread.get("main") else f"thread {thread.get('name')}"
            frames = [frame for frame in thread.get("stack", []) if len(frame) == 3]
            lines += [f"  {main}", *(f"    {format_frame(frame)}" for frame in frames)]
        together.setdefault("\n".join(lines), []).append(rank)
    order = sorted(together.items(), key=lambda item: (len(item[1]), item[1]))
    blocks = [
        f"{len(ranks)} of {len(reports)} ranks: {named(ranks)} ({reports[ranks[0]][1]}"
        f"{', …' if len(ranks) > 1 else ''})\n{text}"
        for text, ranks in order
    ]
    notes = [line for line in (behind(reports), different(reports)) if line]
    return "\n\n".join([*notes, *blocks])
