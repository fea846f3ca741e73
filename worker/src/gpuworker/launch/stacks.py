"""Where a rank is: from the stacks that its hook has sent to one line, and a table of all ranks.

A frame is [file, line, function]; the innermost of a stack is first.
"""

from __future__ import annotations

import os
import re
import signal

from gpuworker.launch.protocol import RankReport, first

LIBRARY = re.compile(r"/lib(64)?/python3|site-packages|dist-packages|^<frozen|^<string>$")
STANDARD = re.compile(r"/lib(64)?/python3[^/]*/(?!site-packages|dist-packages)|^<frozen")
COLLECTIVE = re.compile(r"/torch/distributed/")
IMPORT = re.compile(r"^<frozen importlib")
# A thread that waits for another thread, or for work.
IDLE = re.compile(r"/(threading|queue|selectors|socketserver)\.py$|/concurrent/futures/")
BACKWARD = "_engine_run_backward"
# Between a program and a collective.
SKIPPED = ("wrapper", "inner", "__torch_function__", "__call__")


def own_frame(frames: list[list], program: str) -> int:
    """Index of the innermost frame of the program. `program`: the file of its main module.

    A program that is an installed package has no other frames than a library's: its own are those
    of the main module's folder; without any, the innermost outside Python's standard library.
    """
    home = os.path.dirname(program)

    def distance(index: int) -> int:
        file = frames[index][0]
        if not LIBRARY.search(file):
            return 0
        at_home = home and file.startswith(f"{home}/")
        return 1 if at_home else 2 + bool(STANDARD.search(file))

    return min(range(len(frames)), key=distance)


def format_frame(frame: list) -> str:
    return f"{os.path.basename(frame[0])}:{frame[1]} in {frame[2]}"


def place(frames: list[list], program: str) -> str:
    """file:line in function, of the program; empty without frames."""
    return format_frame(frames[own_frame(frames, program)]) if frames else ""


def locate(frames: list[list], program: str) -> tuple[str, bool, bool]:
    """What a thread does, whether it waits in a collective, and whether it still imports."""
    at, inner = place(frames, program), frames[: own_frame(frames, program)]
    calls = [name for file, _, name in inner if COLLECTIVE.search(file) and name not in SKIPPED]
    # A functional collective waits in a call of torch._ops.
    innermost = next((file for file, _, _ in inner if not file.endswith("/torch/_ops.py")), "")
    if calls and COLLECTIVE.search(innermost):
        return f"waits in {calls[-1]} at {at}", True, False
    if any(name == BACKWARD for _, _, name in inner[:2]):
        return f"waits in backward at {at}", True, False
    if any(IMPORT.search(file) for file, _, _ in frames):
        return f"still imports modules at {at}", False, True
    inside = f" (in {os.path.basename(inner[0][0])}:{inner[0][2]})" if inner else ""
    return f"is at {at}{inside}", False, False


def working_thread(threads: list[dict]) -> dict:
    """The thread that does the program's work: the main one, unless it only waits for others."""
    threads = sorted(threads, key=lambda each: not each["main"])
    for each in threads:
        own = each["main"] or not all(LIBRARY.search(file) for file, _, _ in each["stack"])
        if own and not IDLE.search(each["stack"][0][0]):
            return each
    return threads[0]


def has_ended(threads: list[dict]) -> bool:
    """Whether the main program has ended: nothing of it is on the main thread's stack any more."""
    outermost = [each["stack"][-1] for each in threads if each["main"]]
    return any(
        name not in ("<module>", "_run_module_as_main")
        and not IMPORT.search(file)  # Python itself is still starting
        for file, _, name in outermost
    )


def text_of(threads: list[dict]) -> str:
    """Whole stacks, for people."""
    lines = []
    for thread in threads:
        lines.append("  main thread" if thread["main"] else f"  thread {thread['name']}")
        lines += [f"    {format_frame(frame)}" for frame in thread["stack"]]
    return "\n".join(lines)


def ended(code: int) -> str:
    return f"by {signal_name(-code)}" if code < 0 else f"with {code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def table(reports: list[RankReport], most: int | None = None) -> list[str]:
    """What ranks do, those that do the same together, those that do not wait and are few first.

    `most`: places that are named. Whole stacks come along where the reports have them.
    """
    together: dict[str, list[RankReport]] = {}
    for report in sorted(reports, key=lambda each: each.rank):
        words = "\n".join(filter(None, (report.words, report.stack)))
        together.setdefault(words, []).append(report)
    groups = sorted(together.items(), key=lambda each: (each[1][0].waits, len(each[1])))
    lines = []
    for words, same in groups[:most]:
        who = same[0].name if len(same) == 1 else f"{len(same)} ranks ({numbers(same)}):"
        lines.append(f"{who} {words}")
    if len(groups) > len(groups[:most]):
        lines.append(f"{len(groups) - most} more places")
    lines += filter(None, (behind(reports), different(reports)))
    places = {same[0].words.rpartition(" at ")[2] for _, same in groups}
    if len(places) > 1 and groups[0][1][0].waits:
        lines.append("ranks wait in different collectives")
    return lines


def numbers(reports: list[RankReport]) -> str:
    return first([str(report.rank) for report in reports])


def behind(reports: list[RankReport]) -> str:
    """Ranks that have started fewer collectives of a group than others, which wait for them."""
    for group in sorted({group for report in reports for group in report.groups}):
        counts = {each.rank: each.groups[group] for each in reports if group in each.groups}
        most = max(counts.values())
        late = [f"rank {rank} ({n})" for rank, n in sorted(counts.items()) if n < most]
        if late:
            which = f"{most} collectives of process group {group}"
            return f"{first(late)} is behind the others, which have started {which}"
    return ""


def different(reports: list[RankReport]) -> str:
    """Ranks whose collective of the same number differs in operation, sizes or types."""
    found: dict[tuple[str, str], dict[str, list[RankReport]]] = {}
    for report in reports:
        for group, last in report.last.items():
            words = f"{last.get('op')} of {last.get('sizes')} {last.get('types')}"
            kinds = found.setdefault((group, str(last.get("number"))), {})
            kinds.setdefault(words, []).append(report)
    for (group, number), kinds in sorted(found.items()):
        if len(kinds) > 1:
            each = "; ".join(f"rank {numbers(same)}: {words}" for words, same in kinds.items())
            return f"collective {number} of process group {group} differs: {each}"
    return ""
