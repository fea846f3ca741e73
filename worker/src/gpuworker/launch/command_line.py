"""Command line of ddp-launch: torchrun's flags, and its own.

ddp-launch [FLAGS] train.py ARGS…        as torchrun: also -m MODULE, --no-python PROGRAM
"""

from __future__ import annotations

import argparse

from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.option_types import natural, positive_int

# Of each flag its default in seconds and its meaning.
TIMEOUTS = {
    "join_timeout": (600, "for all nodes to join and pass preflight, from this launcher's start"),
    "heartbeat_timeout": (60, "without a heartbeat, after which a node counts as lost"),
    "collective_timeout": (1800, "for a collective, if the program sets none"),
    "exit_timeout": (300, "for a rank's process to end after its main program"),
    "progress_timeout": (900, "without output or CPU time of any rank; 0 is off"),
    "grace_period": (90, "from SIGTERM to SIGKILL of the program"),
}
# torchrun's flags that have no meaning here: there is one rendezvous, without settings.
WITHOUT_EFFECT = ("rdzv-id", "local-addr", "monitor-interval", "start-method")
REMEDY = "Remove the flag, or use torchrun itself (in a chart: launcher: torchrun)"


def join_timeout(text: str) -> int | None:
    """The time-out of --rdzv-conf; what c10d and etcd have beside it means nothing here."""
    pairs = dict(pair.strip().partition("=")[::2] for pair in text.split(","))
    seconds = pairs.get("join_timeout", pairs.get("timeout"))
    return None if seconds is None else positive_int(seconds)


class _Parser(argparse.ArgumentParser):
    """A parser whose error is a Failure, so that it has a line and a termination message."""

    def error(self, message: str) -> None:
        raise Failure("usage", f"{message}; see ddp-launch --help")


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="ddp-launch",
        usage="ddp-launch [FLAGS] [--] train.py ARGS…\n"
        "       ddp-launch [FLAGS] -m MODULE ARGS… | --no-python PROGRAM ARGS…\n"
        "       ddp-launch stacks      (of all ranks of the run in this pod)",
        description="Run a program on every node, as torchrun, without hangs and with one verdict.",
        allow_abbrev=False,
    )
    add = made.add_argument

    def of_torchrun(name: str, meaning: str = argparse.SUPPRESS, **more: object) -> None:
        add(f"--{name}", *([f"--{name.replace('-', '_')}"] * ("-" in name)), help=meaning, **more)

    for name, (default, meaning) in TIMEOUTS.items():
        kind = natural if name == "progress_timeout" else positive_int
        # That of joining may be in --rdzv-conf, too.
        add(f"--{name.replace('_', '-')}", type=kind, metavar="SECONDS",
            default=None if name == "join_timeout" else default,
            help=f"{meaning} ({default})")  # fmt: skip
    of_torchrun("nnodes", "nodes (1)")
    of_torchrun("nproc-per-node", "processes per node: a number, auto, gpu or cpu (1)")
    of_torchrun("node-rank", "index of this node (0)")
    of_torchrun("master-addr", "name or address of node 0 (this machine)")
    of_torchrun("master-port", "port of node 0; the launchers use the next one")
    of_torchrun("standalone", "one node, and ports that are free", action="store_true")
    add("--max-restarts", "--max_restarts", "--max-restarts-in-place", type=natural, default=0,
        metavar="NUMBER", dest="max_restarts_in_place",
        help="starts of the program after a failure, in the same pods (0)")  # fmt: skip
    of_torchrun("role", "TORCHELASTIC's ROLE_NAME (default)", default="default")
    for name in ("rdzv-endpoint", *WITHOUT_EFFECT):
        of_torchrun(name)
    of_torchrun("rdzv-conf", type=join_timeout)
    of_torchrun("rdzv-backend", choices=["static", "c10d"])
    add("-m", "--module", action="store_true", help="the program is a module")
    of_torchrun("no-python", "the program is not Python", action="store_true")
    add("--interface", default="", help="network interface; empty: that of the route to node 0")
    add("--output-dir", default="", metavar="FOLDER", help="folder for flight records")
    add("--progress-action", choices=["end", "warn"], default="warn", help="at its time-out (warn)")
    add("--node-test", choices=["off", "report", "gate"], default="off",
        help="test this node; with gate the run starts only if all nodes pass (off)")  # fmt: skip
    add("--max-attempts", type=natural, default=0, help="restarts with --idle-after-exit (0)")
    add("--idle-after-exit", metavar="FOLDER", help="keep the pod; FOLDER stores the attempts")
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return made


def read_arguments(words: list[str]) -> tuple[argparse.Namespace, Failure | None]:
    """The command line, or what is wrong with it and one that only reports this to other nodes."""
    try:
        args, unknown = parser().parse_known_args(words)
        if unknown:  # only the names: a value may be a secret of the program
            names = " ".join(word.partition("=")[0] for word in unknown)
            raise Failure("usage", f"unrecognized arguments: {names}. {REMEDY}")
        while args.program and args.program[0] in ("--", "-m", "--module", "--no-python"):
            word = args.program.pop(0)  # the mode may also follow the --
            args.module |= word in ("-m", "--module")
            args.no_python |= word == "--no-python"
        if not args.program:
            raise Failure("usage", "the program is missing: ddp-launch FLAGS train.py")
        return args, None
    except Failure as problem:
        return parser().parse_args(["--no-python", "true"]), problem
