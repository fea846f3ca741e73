"""The plan of a run: flags and the environment contract, checked as a whole before anything starts."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.launch.failure_causes import Verdict

# Variable -> what a node must know, and the range of it.
NUMBERS = {"NNODES": (1, 65536), "NODE_RANK": (0, 65535), "NPROC_PER_NODE": (1, 1024), "MASTER_PORT": (1024, 65534)}
# Flag -> default and meaning, of everything that is waited for.
DEADLINES = {
    "deadline": (600, "all nodes are there and alike; counts from the start of this launcher"),
    "join": (120, "torchrun's own rendezvous, once all nodes are there"),
    "silence": (60, "until a node that is not heard of counts as lost"),
    "start-timeout": (600, "a collective before the first training step, if the program sets none itself"),
    "work-timeout": (1800, "a collective after it"),
    "grace": (90, "from SIGTERM until the program is killed"),
}
LEAST = {"min-shm": 0, "min-disk": 0}
SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Plan:
    nodes: int
    node: int
    processes: int
    master: str
    port: int  # the rendezvous store; the launchers talk on the next one
    run_id: str
    attempt: int
    backend: str
    etcd: str
    interface: str
    out: str
    gpus: int
    debug: bool
    max_clock_skew: float
    min_shm: int
    min_disk: int
    program: tuple[str, ...]
    seconds: dict[str, int] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return self.nodes * self.processes

    @property
    def roll_port(self) -> int:
        return self.port + 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="ddp-launch", description="Run a program under torchrun on every node.")
    for name, (default, meaning) in DEADLINES.items():
        made.add_argument(f"--{name}", type=int, default=default, metavar="SECONDS", help=f"{meaning} ({default})")
    made.add_argument("--backend", choices=["c10d", "static", "etcd"], default="static", help="torchrun's rendezvous")
    made.add_argument("--etcd", default="", metavar="HOST:PORT", help="for --backend=etcd")
    made.add_argument("--interface", default="", help="network interface; empty: the one of the route to node 0")
    made.add_argument("--out", default="", metavar="FOLDER", help="where flight records and folded output are kept")
    made.add_argument("--min-shm", default="0", metavar="SIZE", help="least size of /dev/shm, such as 16Gi")
    made.add_argument("--min-disk", default="0", metavar="SIZE", help="least free space under --out")
    made.add_argument("--max-clock-skew", type=float, default=10, metavar="SECONDS", help="between nodes (10)")
    made.add_argument("--attempts", type=int, default=0, help="restarts in this pod before giving up, with --park")
    made.add_argument("--park", metavar="FOLDER", help="stay after the end (StatefulSet); the folder keeps the count")
    made.add_argument("program", nargs="+", help="what torchrun runs: SCRIPT ARGS… or -m MODULE ARGS…, after --")
    return made


def read_plan(args: argparse.Namespace, environ: dict[str, str]) -> Plan:
    """The plan, or everything that is wrong with it at once."""
    numbers, problems = {}, []
    for name, (low, high) in NUMBERS.items():
        text = environ.get(name, "")
        if text.isdecimal() and low <= int(text) <= high:
            numbers[name] = int(text)
        else:
            problems.append(f"{name}={text or '(not set)'}: need a whole number from {low} to {high}")
    if not environ.get("MASTER_ADDR"):
        problems.append("MASTER_ADDR=(not set): need the DNS name of node 0")
    if {"NNODES", "NODE_RANK"} <= numbers.keys() and numbers["NODE_RANK"] >= numbers["NNODES"]:
        problems.append(
            f"NODE_RANK={numbers['NODE_RANK']}: must be below NNODES={numbers['NNODES']}, one node too many?"
        )
    seconds = {name: getattr(args, name.replace("-", "_")) for name in DEADLINES}
    problems += [f"--{name}={value}: need at least 1 second" for name, value in seconds.items() if value < 1]
    if args.backend == "etcd" and not re.fullmatch(r"\S+:\d+", args.etcd):
        problems.append(f"--etcd={args.etcd or '(not set)'}: --backend=etcd needs HOST:PORT")
    least = {}
    for name in LEAST:
        text = getattr(args, name.replace("-", "_"))
        size = re.fullmatch(r"(\d+)([kMGT]|[KMGT]i)?", text)
        if size:
            least[name] = int(size[1]) * SIZES[size[2] or ""]
        else:
            problems.append(f"--{name}={text}: need a size such as 16Gi")
    if args.out and not Path(args.out).is_dir():
        problems.append(f"--out={args.out}: no such folder")
    script = args.program[0]
    if not script.startswith("-") and not Path(script).exists():
        problems.append(f"program {script}: no such file on this node")
    if problems:
        raise Verdict("usage", "; ".join(problems), "plan")
    # Kubernetes counts a Job's failures and its ignored failures (preemption) apart; each was an attempt.
    attempts = [environ.get(name, "") for name in ("ATTEMPT", "GPU_CHARTS_ATTEMPTS_IGNORED")]
    return Plan(
        nodes=numbers["NNODES"],
        node=numbers["NODE_RANK"],
        processes=numbers["NPROC_PER_NODE"],
        master=environ["MASTER_ADDR"],
        port=numbers["MASTER_PORT"],
        run_id=environ.get("RUN_ID", "run"),
        attempt=sum(int(text) for text in attempts if text.isdecimal()),
        backend=args.backend,
        etcd=args.etcd,
        interface=args.interface,
        out=args.out,
        gpus=int(gpus) if (gpus := environ.get("NUM_GPUS_PER_NODE", "")).isdecimal() else 0,
        debug=environ.get("DEBUG_DISTRIBUTED", "") not in ("", "0", "false"),
        max_clock_skew=args.max_clock_skew,
        min_shm=least["min-shm"],
        min_disk=least["min-disk"],
        program=tuple(args.program),
        seconds=seconds,
    )


def pod_name() -> str:
    return os.environ.get("POD_NAME") or os.uname().nodename
