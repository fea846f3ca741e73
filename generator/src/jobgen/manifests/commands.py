"""The command of a container: a program that ddp-run can start, or a line of a shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from jobgen.manifests.pods import REFERENCE, SET, SHELL_NAME, Pod

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
    if not words:
        return None
    if words[0].rpartition("/")[2] == "torchrun":
        return _torchrun(words[1:])
    if PYTHON.fullmatch(words[0]):
        words = words[2:] if words[1:2] == ["-u"] else words[1:]
        if words[:1] == ["-m"] and words[1:2] and words[1] in LAUNCHERS:
            return _torchrun(words[2:])
        if words and (words[0] == "-m" or not words[0].startswith("-")):
            return _with_args(Program([], processes=1), words)
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
    return program if words and words[-1] != "-m" and not any(map(REFERENCE.search, words)) else None


def shell_line(pod: Pod, folder: object) -> str:
    """The script of `bash -c` as it is; else a command of a shell that starts exactly these words.

    Kubernetes' references become the shell's. `folder`: where it starts, if not in the task's own.
    """
    before = "".join(f"export {name}={value}\n" for name, value in pod.exports.items())
    if folder:
        before += f"cd -- {shlex.quote(str(folder))} || exit\n"
    if len(pod.words) == 3 and pod.words[0].rpartition("/")[2] == "bash" and pod.words[1] == "-c":
        script = pod.words[2]
        if all(found[1] and not _is_known(found[1], pod) for found in REFERENCE.finditer(script)):
            return before + script
    return before + " ".join(_shell_word(word, pod) for word in pod.words) + "\n"


def _is_known(name: str, pod: Pod) -> bool:
    """Whether the variable may exist in the pod, so that Kubernetes would have replaced it."""
    return name in pod.names or name in pod.exports or bool(SET.fullmatch(name)) or pod.open_names


def _shell_word(word: str, pod: Pod) -> str:
    parts, literal, at = [], "", 0
    for found in REFERENCE.finditer(word):
        literal += word[at : found.start()]
        at = found.end()
        if found[1] and SHELL_NAME.fullmatch(found[1]) and _is_known(found[1], pod):
            # Kubernetes leaves a reference to a variable that does not exist as it is.
            default = "" if found[1] in pod.names else f"-\\{found[0]}"
            parts += [shlex.quote(literal) if literal else "", f'"${{{found[1]}{default}}}"']
            literal = ""
        else:  # Kubernetes leaves a reference to nothing as it is
            literal += "$" if found[0] == "$$" else found[0]
    literal += word[at:]
    return "".join(parts) + (shlex.quote(literal) if literal or not parts else "")
