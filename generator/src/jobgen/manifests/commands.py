"""The command of a container: a program that ddp-run can start, or a line of a shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from jobgen.manifests.pods import REFERENCE, Pod

PYTHON = re.compile(r"(.*/)?python[0-9.]*")
# torchrun's flags that the charts decide; a command with any other is carried as it is.
DECIDED = {"nnodes", "node-rank", "rdzv-id", "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "master-addr", "master-port"}
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate launch")


@dataclass
class Program:
    """What ddp-run starts: program.args, and the processes per node, if the command decides them."""

    args: list[str]
    processes: int | None = None
    restarts: int = 0


def program_of(pod: Pod) -> Program | None:
    """None for a command that is more, or something else, than torchrun or Python with a program."""
    words = pod.words
    if not words or any(REFERENCE.search(word) for word in words):
        return None
    if words[0].rpartition("/")[2] == "torchrun":
        return _torchrun(words[1:])
    if PYTHON.fullmatch(words[0]):
        words = words[2:] if words[1:2] == ["-u"] else words[1:]
        if words[:1] == ["-m"] and words[1:2] and words[1] in LAUNCHERS:
            return _torchrun(words[2:])
        if words and (words[0] == "-m" or not words[0].startswith("-")):
            return Program(words, processes=1)
    return None


def _torchrun(words: list[str]) -> Program | None:
    program, words = Program([]), list(words)
    while words and words[0].startswith("-"):
        flag, equals, value = words[0].lstrip("-").partition("=")
        name = flag.replace("_", "-")
        if name in ("m", "module"):
            return _with_args(program, ["-m", *words[1:]])
        value = value if equals else "".join(words[1:2])
        if name == "nproc-per-node":
            program.processes = int(value) if value.isdecimal() else None
        elif name == "max-restarts" and value.isdecimal():
            program.restarts = int(value)
        elif name not in DECIDED:
            return None
        words = words[1 if equals else 2 :]
    return _with_args(program, words)


def _with_args(program: Program, words: list[str]) -> Program | None:
    program.args = words
    return program if words[-1:] != ["-m"] and words else None


def shell_line(pod: Pod) -> str:
    """The script of `bash -c` as it is; else a command of a shell that starts exactly these words.

    Kubernetes' references become the shell's.
    """
    if len(pod.words) == 3 and pod.words[0].rpartition("/")[2] == "bash" and pod.words[1] == "-c":
        script = pod.words[2]
        if all(found[1] and found[1] not in pod.names for found in REFERENCE.finditer(script)):
            return script
    return " ".join(_shell_word(word, pod.names) for word in pod.words) + "\n"


def _shell_word(word: str, known: set[str]) -> str:
    parts, literal, at = [], "", 0
    for found in REFERENCE.finditer(word):
        literal += word[at : found.start()]
        at = found.end()
        if found[1] in known:
            parts += [shlex.quote(literal) if literal else "", f'"${{{found[1]}}}"']
            literal = ""
        else:  # Kubernetes leaves a reference to nothing as it is
            literal += "$" if found[0] == "$$" else found[0]
    literal += word[at:]
    return "".join(parts) + (shlex.quote(literal) if literal or not parts else "")
