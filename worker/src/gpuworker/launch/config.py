"""Configuration of a launch: flags and the environment contract, checked as a whole before anything starts.

The chart ddp-run sets every time-out from its values (`timeouts`); the defaults below are those of the bare command.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch.failure_causes import Verdict
from gpuworker.runtime.contract import INTERNAL_PREFIX, LAUNCHER_PORT_OFFSET
from gpuworker.runtime.message_auth import KeyFileError, load_key

# Variable that every node needs -> its range.
NUMBERS = {"NNODES": (1, 65536), "NODE_RANK": (0, 65535), "NPROC_PER_NODE": (1, 1024), "MASTER_PORT": (1024, 65534)}
TO_NODE_0 = {"NNODES", "NODE_RANK", "MASTER_PORT"}  # without one of these, this node cannot report to node 0
# Flag -> default in seconds and meaning.
TIMEOUTS = {
    "join-timeout": (600, "for all nodes to join and pass preflight, from the start of this launcher"),
    "rendezvous-timeout": (120, "for torchrun's own rendezvous, after all nodes have joined"),
    "heartbeat-timeout": (60, "without a heartbeat, after which a node counts as lost"),
    "startup-collective-timeout": (600, "for a collective before the first optimizer step, if the program sets none"),
    "collective-timeout": (1800, "for a collective after the first optimizer step, if the program sets none"),
    "exit-timeout": (300, "for a rank's process to end after its main program, with its threads and exit handlers"),
    "progress-timeout": (0, "without progress of any rank: an optimizer step, before the first one output; 0 is off"),
    "grace-period": (90, "from SIGTERM to SIGKILL of the program"),
}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # end the run, and the programs may save
SIZE_FLAGS = ("min-shm", "min-disk")
SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
STATE_FOLDER = ".ddp-launch"  # below --output-dir: flight records and folded output


@dataclass(frozen=True)
class LaunchConfig:
    """What a node runs and how long it waits. `timeouts`: flag -> seconds."""

    nnodes: int
    node_rank: int
    nproc_per_node: int
    master_addr: str
    master_port: int
    run_id: str
    attempt: int
    backend: str
    etcd: str
    interface: str
    output_dir: str
    gpus_per_node: int
    debug: bool
    max_clock_skew: float
    min_shm: int
    min_disk: int
    program: tuple[str, ...]
    progress_action: str = "end"
    max_restarts_in_place: int = 0
    rank_wrapper: bool = True
    rank_prefix: bool = False
    rank_logs: bool = False
    torchrun_output: bool = False  # torchrun's --tee or --redirects: it handles the output of the ranks
    timeouts: dict[str, int] = field(default_factory=dict)
    problem: Verdict | None = None  # what is wrong with the configuration of this node
    key: bytes = field(default=b"", repr=False)  # signs the messages between the nodes

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def launcher_port(self) -> int:
        return self.master_port + LAUNCHER_PORT_OFFSET

    @property
    def python_program(self) -> bool:
        """Whether Python runs the program, so that the rank wrapper can."""
        return self.program[0] != "--no-python"

    @property
    def command(self) -> tuple[str, ...]:
        """The program without the mode."""
        return self.program if self.python_program else self.program[1:]


class _Parser(argparse.ArgumentParser):
    """A parser whose error is the verdict `usage`, so that it has a line and a termination message."""

    def error(self, message: str) -> None:
        what, unknown, words = message.partition("unrecognized arguments: ")
        if unknown:  # only the names: a value may be a secret of the program
            names = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
            message = f"{what}{unknown}{' '.join(names) or 'words without a flag'}"
        raise Verdict("usage", f"{message}; put -- before the program: ddp-launch FLAGS -- train.py ARGS", "config")


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="ddp-launch", description="Run a program under torchrun on every node.")
    for name, (default, meaning) in TIMEOUTS.items():
        made.add_argument(f"--{name}", type=int, default=default, metavar="SECONDS", help=f"{meaning} ({default})")
    made.add_argument("--backend", choices=["c10d", "static", "etcd"], default="static", help="rendezvous (static)")
    made.add_argument("--etcd", default="", metavar="HOST:PORT", help="address of etcd, for --backend=etcd")
    made.add_argument("--interface", default="", help="network interface; empty: that of the route to node 0")
    made.add_argument("--output-dir", default="", metavar="FOLDER", help="folder for flight records and folded output")
    made.add_argument("--min-shm", default="0", metavar="SIZE", help="minimum size of /dev/shm, such as 16Gi")
    made.add_argument("--min-disk", default="0", metavar="SIZE", help="minimum free space in --output-dir")
    made.add_argument("--max-clock-skew", type=float, default=10, metavar="SECONDS", help="between nodes' clocks (10)")
    made.add_argument(
        "--progress-action", choices=["end", "warn"], default="end", help="at the progress time-out (end)"
    )
    made.add_argument("--max-restarts-in-place", type=int, default=0, metavar="NUMBER",
                      help="starts of the program after a failure, in the same pods (0)")  # fmt: skip
    made.add_argument("--rank-wrapper", choices=["on", "off"], default="on", help="time-outs and stacks in ranks (on)")
    made.add_argument("--rank-prefix", action="store_true", help="begin every line of a rank with [rank3]:")
    made.add_argument("--rank-logs", action="store_true", help="also write rank-<n>.log below --output-dir")
    made.add_argument(
        "--max-attempts", type=int, default=0, metavar="NUMBER", help="restarts with --idle-after-exit (0)"
    )
    made.add_argument(
        "--idle-after-exit", metavar="FOLDER", help="keep the pod after the end; FOLDER stores the count of attempts"
    )
    made.add_argument("program", nargs="+", help="program for torchrun, after --: SCRIPT ARGS… or -m MODULE ARGS…")
    return made


def read_arguments() -> tuple[argparse.Namespace, Verdict | None]:
    """The command line, or what is wrong with it and that of a launcher that only reports this to the other nodes."""
    try:
        return parser().parse_args(), None
    except Verdict as problem:
        return parser().parse_args(["--", sys.executable]), problem


def read_config(args: argparse.Namespace, environ: dict[str, str], problem: Verdict | None = None) -> LaunchConfig:
    """The configuration. With wrong settings it has the verdict `usage` as `problem`, which this node sends to node 0
    so that the others do not wait; it raises that verdict if this node cannot reach node 0.
    """
    numbers, problems = {}, [problem.reason] if problem else []
    for name, (low, high) in NUMBERS.items():
        text = environ.get(name, "")
        if text.isascii() and text.isdecimal() and low <= int(text) <= high:
            numbers[name] = int(text)
        else:
            problems.append(f"{name}={text or '(not set)'}: must be a whole number from {low} to {high}")
    if not environ.get("MASTER_ADDR"):
        problems.append("MASTER_ADDR=(not set): must be the DNS name of node 0")
    if {"NNODES", "NODE_RANK"} <= numbers.keys() and numbers["NODE_RANK"] >= numbers["NNODES"]:
        rank, nnodes = numbers["NODE_RANK"], numbers["NNODES"]
        problems.append(f"NODE_RANK={rank}: must be below NNODES={nnodes}, one node too many?")
    timeouts = {name: getattr(args, name.replace("-", "_")) for name in TIMEOUTS}
    short = [name for name, value in timeouts.items() if value < (0 if name == "progress-timeout" else 1)]
    problems += [f"--{name}={timeouts[name]}: must be at least 1 second" for name in short]
    timeouts |= {name: TIMEOUTS[name][0] for name in short}  # this node still has to tell the others
    if args.backend == "etcd" and not re.fullmatch(r"\S+:\d+", args.etcd):
        problems.append(f"--etcd={args.etcd or '(not set)'}: --backend=etcd needs HOST:PORT")
    sizes = {}
    for name in SIZE_FLAGS:
        text = getattr(args, name.replace("-", "_"))
        size = re.fullmatch(r"(\d+)([kMGT]|[KMGT]i)?", text)
        if size:
            sizes[name] = int(size[1]) * SIZES[size[2] or ""]
        else:
            problems.append(f"--{name}={text}: must be a size such as 16Gi")
    for name in ("max-restarts-in-place", "max-attempts"):
        if (number := getattr(args, name.replace("-", "_"))) < 0:
            problems.append(f"--{name}={number}: must be a whole number from 0")
    if args.output_dir and not Path(args.output_dir).is_dir():
        problems.append(f"--output-dir={args.output_dir}: no such folder")
    if args.rank_logs and not args.output_dir:
        problems.append("--rank-logs: needs --output-dir")
    script = args.program[0]
    if script in ("-m", "--no-python") and len(args.program) < 2:
        problems.append(f"program {script}: what it runs is missing")
    if not script.startswith("-") and not Path(script).exists():
        problems.append(f"program {script}: no such file")
    try:
        key = load_key()
    except KeyFileError as error:
        raise Verdict("usage", str(error), "config") from None  # node 0 would not believe this node
    problem = Verdict("usage", "; ".join(problems), "config") if problems else None
    if problem and (not numbers.keys() >= TO_NODE_0 or not environ.get("MASTER_ADDR")):
        raise problem  # this node cannot reach the others
    numbers.setdefault("NPROC_PER_NODE", 1)
    if problem and numbers["NODE_RANK"] >= numbers["NNODES"]:
        raise problem
    # Kubernetes counts a Job's failures and its ignored failures (preemption) apart; each was an attempt.
    attempts = [environ.get(name, "") for name in ("ATTEMPT", f"{INTERNAL_PREFIX}ATTEMPTS_IGNORED")]
    gpus = environ.get("NUM_GPUS_PER_NODE", "")
    return LaunchConfig(
        nnodes=numbers["NNODES"],
        node_rank=numbers["NODE_RANK"],
        nproc_per_node=numbers["NPROC_PER_NODE"],
        master_addr=environ["MASTER_ADDR"],
        master_port=numbers["MASTER_PORT"],
        run_id=environ.get("RUN_ID", "run"),
        attempt=sum(int(text) for text in attempts if text.isdecimal()),
        backend=args.backend,
        etcd=args.etcd,
        interface=args.interface,
        output_dir=args.output_dir,
        gpus_per_node=int(gpus) if gpus.isdecimal() else 0,
        debug=environ.get("DEBUG_DISTRIBUTED", "") not in ("", "0", "false"),
        max_clock_skew=args.max_clock_skew,
        min_shm=sizes.get("min-shm", 0),
        min_disk=sizes.get("min-disk", 0),
        program=tuple(args.program),
        key=key,
        progress_action=args.progress_action,
        max_restarts_in_place=args.max_restarts_in_place,
        rank_wrapper=args.rank_wrapper == "on",
        rank_prefix=args.rank_prefix,
        rank_logs=args.rank_logs,
        torchrun_output=any(environ.get(f"PET_{name}", "0") not in ("", "0") for name in ("TEE", "REDIRECTS")),
        timeouts=timeouts,
        problem=problem,
    )


def pod_name() -> str:
    return os.environ.get("POD_NAME") or os.uname().nodename
