"""Configuration of a launch: from the command line and the environment contract.

It is checked before anything starts. What a flag of torchrun asks for is done, or
refused with the way out; in a pod a flag may not contradict what the chart has set. The chart
ddp-run sets every time-out from its values; the defaults below are those of the bare command.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpuworker.launch.command_line import REMEDY, TIMEOUTS
from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime import machine
from gpuworker.runtime.contract import (
    INTERNAL_PREFIX,
    LAUNCHER_PORT_OFFSET,
    RENDEZVOUS_PORT,
    VARIABLES,
    Override,
)
from gpuworker.runtime.message_auth import KeyFileError, load_key

# Variable -> its range.
NUMBERS = {
    "NNODES": (1, 65536),
    "NODE_RANK": (0, 65535),
    "NPROC_PER_NODE": (1, 1024),
    "MASTER_PORT": (1024, 65534),
}
PROCESSES = ("auto", "gpu", "cpu")  # torchrun's words for a number of them
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # end the run; programs may save


@dataclass(frozen=True)
class LaunchConfig:
    """What a node runs and how long it waits, in seconds. A flag's value has the flag's name."""

    nnodes: int
    node_rank: int
    nproc_per_node: int
    master_addr: str
    master_port: int
    program: tuple[str, ...]  # the command of a rank
    role: str
    interface: str
    output_dir: str
    node_test: str
    spares: int
    max_restarts_in_place: int
    progress_action: str
    join_timeout: int
    heartbeat_timeout: int
    collective_timeout: int
    exit_timeout: int
    progress_timeout: int
    grace_period: int
    run_id: str
    attempt: int
    gpus_per_node: int
    debug: bool
    problem: Failure | None  # what is wrong with the configuration of this node
    key: bytes = field(repr=False)  # signs the messages between the nodes

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def launcher_port(self) -> int:
        return self.master_port + LAUNCHER_PORT_OFFSET


def read_config(
    args: argparse.Namespace, environ: Mapping[str, str], problem: Failure | None = None
) -> LaunchConfig:
    """The configuration. Raises the Failure `usage` if this node cannot reach node 0.

    Whatever else is wrong is its `problem`, which this node sends to node 0 so that the others do
    not wait.
    """
    names = [each.name for each in fields(LaunchConfig) if each.name in args]
    found = {name: getattr(args, name) for name in names} | read_world(args, environ)
    processes_of_node = found["nproc_per_node"]
    found |= {"nproc_per_node": 1, "program": ()}
    found["join_timeout"] = args.join_timeout or args.rdzv_conf or TIMEOUTS["join_timeout"][0]
    try:
        key = load_key()
    except KeyFileError as error:  # node 0 would not believe this node
        raise usage(str(error)) from None
    try:
        found["nproc_per_node"] = number("NPROC_PER_NODE", processes_of_node)
        if args.output_dir and not Path(args.output_dir).is_dir():
            raise usage(f"--output-dir={args.output_dir}: no such folder")
        found["program"] = command(args, environ)
    except Failure as wrong:
        problem = problem or wrong
    # Kubernetes counts a Job's failures and its ignored ones (preemption) apart; each was an
    # attempt.
    attempts = [environ.get(name, "") for name in ("ATTEMPT", f"{INTERNAL_PREFIX}ATTEMPTS_IGNORED")]
    gpu_count = environ.get("NUM_GPUS_PER_NODE", "")
    return LaunchConfig(
        **found,
        run_id=environ.get("RUN_ID", "run"),
        attempt=sum(int(text) for text in attempts if text.isdecimal()),
        gpus_per_node=int(gpu_count) if gpu_count.isdecimal() else 0,
        debug=environ.get("DEBUG_DISTRIBUTED", "") not in ("", "0", "false"),
        problem=problem,
        key=key,
    )


def usage(reason: str) -> Failure:
    return Failure("usage", reason)


def read_world(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """Variables of the contract, or the flags that may replace them. Raises usage.

    The number of processes is still a text: without it, this node can reach node 0.
    """
    # An address in brackets may hold colons.
    host, port = re.fullmatch(r"(?s)(.*?)(?::(\d+))?", args.rdzv_endpoint or "").groups()
    given = {
        "NNODES": args.nnodes,
        "NODE_RANK": args.node_rank,
        "NPROC_PER_NODE": args.nproc_per_node,
        "MASTER_ADDR": args.master_addr or host.removeprefix("[").removesuffix("]") or None,
        "MASTER_PORT": args.master_port or port,
    }
    if args.nnodes and ":" in args.nnodes:
        fewest, _, given["NNODES"] = args.nnodes.partition(":")
        if fewest != given["NNODES"]:
            raise usage(f"--nnodes={args.nnodes}: the size is fixed. {REMEDY}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        in_pod = environ.get(name) or environ.get(f"PET_{name}", "")
        if args.standalone and name != "NPROC_PER_NODE":  # as torchrun: a world of its own
            in_pod = ""
        found[name] = in_pod
        if value in (None, in_pod) or (in_pod and value in PROCESSES):
            continue
        rule = next(each.override for each in VARIABLES if each.name == name)
        if in_pod and rule is Override.REFUSED:
            flag = name.lower().replace("_", "-")
            raise usage(f"--{flag}={value} contradicts {name}={in_pod} of this pod")
        found[name] = processes(value) if value in PROCESSES else value
    defaults = {"NPROC_PER_NODE": "1", "MASTER_PORT": str(RENDEZVOUS_PORT)}
    if not found["NNODES"]:
        defaults |= {"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        defaults["MASTER_PORT"] = str(free_ports())
    found = {name: value or defaults.get(name, "") for name, value in found.items()}
    for name in ("NNODES", "NODE_RANK", "MASTER_PORT"):
        found[name] = number(name, found[name])
    if not (address := found["MASTER_ADDR"]):
        raise usage("MASTER_ADDR=(not set): must be the DNS name of node 0")
    if address == environ.get("SKYPILOT_NODE_IPS", "").partition("\n")[0]:
        # The name still finds node 0 when its pod has been replaced.
        found["MASTER_ADDR"] = environ.get("PET_MASTER_ADDR", address)
    rank, pods = found["NODE_RANK"], found["NNODES"] + args.spares
    if rank >= pods:
        raise usage(f"NODE_RANK={rank}: must be below NNODES={pods}, one node too many?")
    return {name.lower(): value for name, value in found.items()}


def number(name: str, text: str) -> int:
    low, high = NUMBERS[name]
    if text.isascii() and text.isdecimal() and low <= int(text) <= high:
        return int(text)
    shown = text or "(not set)"
    raise usage(f"{name}={shown}: must be a whole number from {low} to {high}")


def command(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a rank executes: torchrun's choice of Python, unbuffered."""
    program = args.program
    if args.no_python and args.module:
        raise usage("--module and --no-python exclude each other")
    if args.no_python:
        if not shutil.which(program[0]):
            raise usage(f"program {program[0]}: no such program, or not executable")
        return tuple(program)
    if not args.module and program[0] != "-" and not Path(program[0]).exists():
        raise usage(f"program {program[0]}: no such file")
    python = environ.get("PYTHON_EXEC", sys.executable)
    return (python, "-u", *(["-m"] if args.module else []), *program)


def processes(word: str) -> str:
    """Processes of a node by torchrun's words."""
    visible = [] if word == "cpu" else machine.visible_gpus()[0] or []
    if word == "gpu" and not visible:
        raise usage("--nproc-per-node=gpu: no GPU is visible")
    return str(len(visible) or machine.cpus())


def free_ports() -> int:
    """The first of two adjacent free ports, chosen by the kernel: each program gets others."""
    while True:
        with (
            socket.create_server(("", 0)) as first,
            contextlib.suppress(OSError, OverflowError),  # used, or above the last port
        ):
            port = first.getsockname()[1]
            socket.create_server(("", port + LAUNCHER_PORT_OFFSET)).close()
            return port
