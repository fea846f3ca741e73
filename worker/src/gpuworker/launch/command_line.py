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
REMEDY = "See ddp-launch --help, or use torchrun itself (in a chart: launcher: torchrun)"


def join_timeout(text: str) -> int | None:
    """The time-out of --rdzv-conf; what c10d and etcd have beside it means nothing here."""
    pairs = dict(pair.strip().partition("=")[::2] for pair in text.split(","))
    seconds = pairs.get("join_timeout", pairs.get("timeout"))
    return None if seconds is None else positive_int(seconds)


class _Parser(argparse.ArgumentParser):
    """A parser whose error is a Failure, so that it has a line and a termination message."""

    def error(self, message: str) -> None:
        raise Failure("usage", f"{message}. {REMEDY}")


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="ddp-launch",
        usage="ddp-launch [FLAGS] [--] train.py ARGS…\n"
        "       ddp-launch [FLAGS] -m MODULE ARGS… | --no-python PROGRAM ARGS…\n"
        "       ddp-launch stacks      (of all ranks of the run in this pod)",
        description="Run a program on every node, as torchrun, without hangs and with one verdict.",
        allow_abbrev=False,
    )

    def flag(name: str, meaning: str = argparse.SUPPRESS, *more: str, **settings: object) -> None:
        both = dict.fromkeys([f"--{name}", f"--{name.replace('-', '_')}"])  # as torchrun
        made.add_argument(*more, *both, help=meaning, **settings)

    for name, (default, meaning) in TIMEOUTS.items():
        kind = natural if name == "progress_timeout" else positive_int
        # That of joining may be in --rdzv-conf, too.
        flag(name.replace("_", "-"), f"{meaning} ({default})", type=kind, metavar="SECONDS",
             default=None if name == "join_timeout" else default)  # fmt: skip
    flag("nnodes", "nodes (1)")
    flag("nproc-per-node", "processes per node: a number, auto, gpu or cpu (1)")
    flag("node-rank", "index of this node (0)")
    flag("master-addr", "name or address of node 0 (this machine)")
    flag("master-port", "port of node 0; the launchers use the next one")
    flag("standalone", "one node, and ports that are free", action="store_true")
    flag("max-restarts", "starts of the program after a failure, in the same pods (0)",
         "--max-restarts-in-place", type=natural, default=0, metavar="NUMBER")  # fmt: skip
    flag("role", "TORCHELASTIC's ROLE_NAME (default)", default="default")
    for name in ("rdzv-endpoint", *WITHOUT_EFFECT):
        flag(name)
    flag("rdzv-conf", type=join_timeout)
    flag("rdzv-backend", choices=["static", "c10d"])
    flag("module", "the program is a module", "-m", action="store_true")
    flag("no-python", "the program is not Python", action="store_true")
    flag("interface", "network interface; empty: that of the route to node 0", default="")
    flag("output-dir", "folder for flight records", default="", metavar="FOLDER")
    flag("progress-action", "at its time-out (warn)", choices=["end", "warn"], default="warn")
    flag("node-test", "test this node; with gate the run starts only if all nodes pass (off)",
         choices=["off", "report", "gate"], default="off")  # fmt: skip
    flag(
        "spares", "nodes that start besides, for those that are unfit (0)", type=natural, default=0
    )
    flag("max-attempts", "restarts with --idle-after-exit (0)", type=natural, default=0)
    flag("idle-after-exit", "keep the pod; FOLDER stores the attempts", metavar="FOLDER")
    made.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
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
