"""Configuration of a launch: from the command line and the environment contract.

It is checked as a whole before anything starts. What a flag of torchrun asks for is done, or
refused with the way out; in a pod a flag may not contradict what the chart has set. The chart
ddp-run sets every time-out from its values; the defaults below are those of the bare command.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch import gpus
from gpuworker.launch.command_line import REFUSED, TIMEOUTS
from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.contract import (
    INTERNAL_PREFIX,
    LAUNCHER_PORT_OFFSET,
    RENDEZVOUS_PORT,
    VARIABLES,
    Override,
)
from gpuworker.runtime.message_auth import KeyFileError, load_key

# Variable -> its flag of torchrun, its range and its default on a machine of one's own.
NUMBERS = {
    "NNODES": ("nnodes", 1, 65536, 1),
    "NODE_RANK": ("node-rank", 0, 65535, 0),
    "NPROC_PER_NODE": ("nproc-per-node", 1, 1024, 1),
    "MASTER_PORT": ("master-port", 1024, 65534, RENDEZVOUS_PORT),
}
TO_NODE_0 = {"NNODES", "NODE_RANK", "MASTER_PORT"}  # without one, this node cannot reach node 0
# Flags that the configuration has as they are given.
AS_GIVEN = (
    "interface",
    "output_dir",
    "max_clock_skew",
    "progress_action",
    "rank_prefix",
    "rank_logs",
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # end the run; programs may save
SIZE_FLAGS = ("min-shm", "min-disk")
SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
STATE_FOLDER = ".ddp-launch"  # below --output-dir: flight records and output of ranks
REMEDY = "Remove the flag, or use torchrun itself (in a chart: launcher: torchrun)"
# Settings of --rdzv-conf that are time-outs of joining; what c10d and etcd have beside them.
CONF_TIMEOUTS = ("join_timeout", "timeout")


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
    interface: str
    output_dir: str
    gpus_per_node: int
    debug: bool
    max_clock_skew: float
    min_shm: int
    min_disk: int
    program: tuple[str, ...]  # the command of a rank
    role: str = "default"
    progress_action: str = "warn"
    max_restarts_in_place: int = 0
    rank_hooks: bool = True
    rank_prefix: bool = False
    rank_logs: bool = False
    timeouts: dict[str, int] = field(default_factory=dict)
    problem: Failure | None = None  # what is wrong with the configuration of this node
    key: bytes = field(default=b"", repr=False)  # signs the messages between the nodes

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def launcher_port(self) -> int:
        return self.master_port + LAUNCHER_PORT_OFFSET


class _Reader:
    """Reads one value after the other, and collects what is wrong with them."""

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str]):
        self.args, self.environ, self.problems = args, environ, []

    def flag(self, name: str) -> str | None:
        """torchrun's own way: the flag, else the variable PET_…."""
        given = getattr(self.args, name.replace("-", "_"))
        return given if given is not None else self.environ.get(f"PET_{variable(name)}")

    def contract(self, name: str, flag: str, given: str | None) -> str:
        """A variable of the contract, or the flag where it may replace it."""
        set_by_chart = self.environ.get(name) or self.environ.get(f"PET_{name}", "")
        rule = next(each.override for each in VARIABLES if each.name == name)
        if given is None or (set_by_chart and given == set_by_chart):
            return set_by_chart
        if set_by_chart and rule is Override.REFUSED:
            self.problems.append(f"--{flag}={given} contradicts {name}={set_by_chart} of this pod")
            return set_by_chart
        return given

    def number(self, name: str, text: str | None, low: int, high: int) -> int | None:
        if text and text.isascii() and text.isdecimal() and low <= int(text) <= high:
            return int(text)
        shown = text or "(not set)"
        self.problems.append(f"{name}={shown}: must be a whole number from {low} to {high}")
        return None

    def size(self, name: str) -> int:
        text = getattr(self.args, name.replace("-", "_"))
        if found := re.fullmatch(r"(\d+)([kMGT]|[KMGT]i)?", text):
            return int(found[1]) * SIZES[found[2] or ""]
        self.problems.append(f"--{name}={text}: must be a size such as 16Gi")
        return 0

    def endpoint(self) -> tuple[str | None, str | None]:
        """Address and port of --rdzv-endpoint; an address in brackets may hold colons."""
        text = self.args.rdzv_endpoint or ""
        host, port = re.fullmatch(r"(?s)(.*?)(?::(\d+))?", text).groups()
        return host.removeprefix("[").removesuffix("]") or None, port

    def timeouts(self) -> dict[str, int]:
        found = {name: getattr(self.args, name.replace("-", "_")) for name in TIMEOUTS}
        if found["join-timeout"] is None:
            for pair in (self.args.rdzv_conf or "").split(","):
                key, _, value = pair.partition("=")
                if key.strip() in CONF_TIMEOUTS:
                    found["join-timeout"] = self.number(f"--rdzv-conf {key}", value, 1, 10**6)
        for name, (default, _) in TIMEOUTS.items():
            if found[name] is None:
                found[name] = default
            elif found[name] < (0 if name == "progress-timeout" else 1):
                self.problems.append(f"--{name}={found[name]}: must be at least 1 second")
                found[name] = default  # this node still has to tell the others
        return found

    def refuse(self) -> None:
        """Flags, and PET_ variables, that ask for what this launcher does not do."""
        for name, instead in REFUSED.items():
            if (given := self.flag(name)) not in (None, "0", "none"):
                way = f"use {instead}" if instead else REMEDY
                self.problems.append(f"--{name}={given} is not supported: {way}")
        backend = self.args.rdzv_backend or "static"
        if backend not in ("static", "c10d"):
            self.problems.append(f"--rdzv-backend={backend} is not supported: {REMEDY}")


def variable(flag: str) -> str:
    return flag.replace("-", "_").upper()


def read_config(
    args: argparse.Namespace, environ: Mapping[str, str], problem: Failure | None = None
) -> LaunchConfig:
    """The configuration.

    With wrong settings it has the Failure `usage` as `problem`, which this node sends to node 0 so
    that the others do not wait; it raises that Failure if this node cannot reach node 0.
    """
    read = _Reader(args, environ)
    read.problems += [problem.reason] if problem else []
    read.refuse()
    host, port = read.endpoint()
    alone = args.standalone or not (
        args.nnodes or environ.get("NNODES") or environ.get("PET_NNODES")
    )
    texts: dict[str, str] = {}
    for name, (flag, *_, default) in NUMBERS.items():
        given = getattr(args, flag.replace("-", "_"))
        given = port if name == "MASTER_PORT" and given is None else given
        if name == "NPROC_PER_NODE" and given in ("auto", "gpu", "cpu"):
            given = None if environ.get(name) else str(processes(given, read))
        if name == "NNODES" and given and ":" in given:
            fewest, _, given = given.partition(":")
            if fewest != given:
                read.problems.append(f"--nnodes={fewest}:{given}: the size is fixed. {REMEDY}")
        ignored = args.standalone and name != "NPROC_PER_NODE"  # as torchrun: a world of its own
        texts[name] = (given or "") if ignored else read.contract(name, flag, given)
        if alone and not texts[name]:
            texts[name] = str(default if name != "MASTER_PORT" else free_ports())
    address = (
        ""
        if args.standalone
        else read.contract("MASTER_ADDR", "master-addr", args.master_addr or host)
    )
    if address == environ.get("SKYPILOT_NODE_IPS", "").partition("\n")[0] != "":
        # The name still finds node 0 when its pod has been replaced.
        address = environ.get("PET_MASTER_ADDR", address)
    address = address or ("127.0.0.1" if alone else "")
    numbers = {
        name: found
        for name, (_, low, high, _) in NUMBERS.items()
        if (found := read.number(name, texts[name], low, high)) is not None
    }
    if not address:
        read.problems.append("MASTER_ADDR=(not set): must be the DNS name of node 0")
    if {"NNODES", "NODE_RANK"} <= numbers.keys() and numbers["NODE_RANK"] >= numbers["NNODES"]:
        rank, nnodes = numbers["NODE_RANK"], numbers["NNODES"]
        read.problems.append(f"NODE_RANK={rank}: must be below NNODES={nnodes}, one node too many?")
    timeouts, sizes = read.timeouts(), {name: read.size(name) for name in SIZE_FLAGS}
    in_place = args.max_restarts_in_place
    flag = "--max-restarts-in-place" if in_place else "--max-restarts"
    restarts = read.number(flag, in_place or args.max_restarts or "0", 0, 10**6) or 0
    if args.output_dir and not Path(args.output_dir).is_dir():
        read.problems.append(f"--output-dir={args.output_dir}: no such folder")
    if args.rank_logs and not args.output_dir:
        read.problems.append("--rank-logs: needs --output-dir")
    program = command(args, environ, read)
    try:
        key = load_key()
    except KeyFileError as error:  # node 0 would not believe this node
        raise Failure("usage", str(error), "config") from None
    problem = Failure("usage", "; ".join(read.problems), "config") if read.problems else None
    if problem and (not numbers.keys() >= TO_NODE_0 or not address):
        raise problem
    numbers.setdefault("NPROC_PER_NODE", 1)
    if problem and numbers["NODE_RANK"] >= numbers["NNODES"]:
        raise problem
    # Kubernetes counts a Job's failures and its ignored ones (preemption) apart; each was an
    # attempt.
    attempts = [environ.get(name, "") for name in ("ATTEMPT", f"{INTERNAL_PREFIX}ATTEMPTS_IGNORED")]
    gpu_count = environ.get("NUM_GPUS_PER_NODE", "")
    return LaunchConfig(
        **{name.lower(): number for name, number in numbers.items()},
        **{name: getattr(args, name) for name in AS_GIVEN},
        **{name.replace("-", "_"): size for name, size in sizes.items()},
        master_addr=address,
        run_id=environ.get("RUN_ID", "run"),
        attempt=sum(int(text) for text in attempts if text.isdecimal()),
        gpus_per_node=int(gpu_count) if gpu_count.isdecimal() else 0,
        debug=environ.get("DEBUG_DISTRIBUTED", "") not in ("", "0", "false"),
        program=program,
        role=read.flag("role") or "default",
        max_restarts_in_place=restarts,
        rank_hooks=args.rank_hooks == "on",
        timeouts=timeouts,
        problem=problem,
        key=key,
    )


def command(args: argparse.Namespace, environ: Mapping[str, str], read: _Reader) -> tuple[str, ...]:
    """What a rank executes: torchrun's choice of Python, unbuffered."""
    program = args.program
    if args.no_python and args.module:
        read.problems.append("--module and --no-python exclude each other")
    if args.no_python:
        if not shutil.which(program[0]):
            read.problems.append(f"program {program[0]}: no such program, or not executable")
        return tuple(program)
    if not args.module and not Path(program[0]).exists():
        read.problems.append(f"program {program[0]}: no such file")
    python = environ.get("PYTHON_EXEC", sys.executable)
    return (python, "-u", *(["-m"] if args.module else []), *program)


def processes(word: str, read: _Reader) -> int:
    """Processes of a node by torchrun's words auto, gpu and cpu."""
    visible = [] if word == "cpu" else gpus.visible()[0] or []
    if word == "gpu" and not visible:
        read.problems.append("--nproc-per-node=gpu: no GPU is visible")
    return len(visible) or cpus()


def cpus() -> int:
    """CPUs that this container may use: its quota, which Python does not read, or its affinity."""
    own = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return own if quota == "max" else max(1, min(own, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return own


def free_ports() -> int:
    """The first of two adjacent free ports, chosen by the kernel: each program gets others."""
    while True:
        with socket.create_server(("", 0)) as first:
            port = first.getsockname()[1]
            try:
                socket.create_server(("", port + LAUNCHER_PORT_OFFSET)).close()
                return port
            except (OSError, OverflowError):  # used, or above the last port
                continue


def pod_name() -> str:
    return os.environ.get("POD_NAME") or os.uname().nodename
