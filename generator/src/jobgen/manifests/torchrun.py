"""Command lines that start torchrun, or a launcher with its options."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_LAUNCHERS = ("torchrun", "dlrover-run")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "dlrover.trainer.torch.elastic_run")
_ALONE = ("--standalone", "--no-python", "--run-path", "--module", "-m", "--use-env")
# Options of dlrover-run without a value.
_DLROVER = ("--network-check", "--comm-perf-test", "--exclude-straggler", "--save-at-breakpoint", "--numa-affinity")
_DLROVER += ("--auto-config", "--auto-tunning")
_ENDS = (";", "&&", "||", "|", "&")


@dataclass
class Program:
    """A program and its arguments, as the value program.args; `lost` are words that the chart does not take."""

    args: list[str]
    processes: int | None = None
    restarts: int = 0
    lost: list[str] = field(default_factory=list)


def parse(command: list[str]) -> Program | None:
    """Return the program of a container's command; None if it starts neither torchrun nor Python."""
    if command and command[0] in _SHELLS:
        return _script(command)
    for index, word in enumerate(command):
        if word.rpartition("/")[2] in _LAUNCHERS:
            return _torchrun(command[index + 1 :], command[:index])
        if word in _MODULES and command[index - 1 : index] == ["-m"]:
            return _torchrun(command[index + 1 :], [])
    if command and _PYTHON.fullmatch(command[0]) and len(command) > 1:
        return Program([word for word in command[1:] if word != "-u"])
    return None


def names_launcher(words: list[str]) -> bool:
    text = " ".join(words)
    return any(name in text for name in (*_LAUNCHERS, *_MODULES))


def _script(command: list[str]) -> Program | None:
    """Take the last command of a script that starts a program; the others are lost."""
    text = next((word for word in command[1:] if not word.startswith("-")), "")
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote without an end
        return None
    parts: list[list[str]] = [[]]
    for word in words:
        if word in _ENDS:
            parts.append([])
        else:
            parts[-1].append(word)
    parts = [part[1:] if part[:1] == ["exec"] else part for part in parts if part]
    found = [(part, program) for part in parts if (program := parse(part))]
    if not found:
        return None
    starters = [each for each in found if names_launcher(each[0])]
    chosen, program = (starters or found[-1:])[0]
    program.lost += [" ".join(part) for part in parts if part is not chosen]
    return program


def _torchrun(words: list[str], before: list[str]) -> Program:
    program = Program([], lost=[" ".join(before)] if before else [])
    module = False
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        name = option.replace("_", "-")
        if name in _ALONE or name in _DLROVER:
            module = module or name in ("-m", "--module")
            if name in ("--no-python", "--run-path", *_DLROVER):
                program.lost.append(option)
            continue
        value = value if equals else (words.pop(0) if words else "")
        if name == "--nproc-per-node":
            program.processes = int(value) if value.isdigit() else None
        elif name == "--max-restarts" and value.isdigit():
            program.restarts = int(value)
        elif not re.match("--(nnodes|node-rank|rdzv|master)", name):
            program.lost.append(f"{option} {value}")
    program.args = ["-m", *words] if module else words
    return program
