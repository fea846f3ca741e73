"""ddp-launch: run a program under torchrun on every node of a world, by the environment contract of the charts.

  ddp-launch -- -m gpuworker.accept.ddp_tests      (anything that follows -- is given to torchrun as the program)

Reads NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT, RUN_ID and ATTEMPT. Node 0 hosts the rendezvous
store and every node is told so: torchrun's own guess goes wrong when a name resolves to several pods or DNS lags
(pytorch issues 73380, 79388). Exit codes: 0 done, 2 bad plan, 64 the master's name did not resolve in time,
143 stopped, else torchrun's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from gpuworker.log import log, write_termination_message

USAGE, NO_DNS = 2, 64


class PlanError(Exception):
    """What is wrong with the environment and how to mend it."""


@dataclass(frozen=True)
class World:
    nodes: int
    node_rank: int
    processes: int
    master: str
    port: int
    run_id: str
    attempt: str


def read_world(environ: dict[str, str]) -> World:
    """Check the whole plan and name everything that is wrong at once."""
    numbers, problems = {}, []
    ranges = {"NNODES": (1, 65536), "NODE_RANK": (0, 65535), "NPROC_PER_NODE": (1, 1024), "MASTER_PORT": (1024, 65535)}
    for name, (low, high) in ranges.items():
        text = environ.get(name, "")
        if text.isdecimal() and low <= int(text) <= high:
            numbers[name] = int(text)
        else:
            problems.append(f"{name}={text or '(not set)'}: need a whole number from {low} to {high}")
    if not environ.get("MASTER_ADDR"):
        problems.append("MASTER_ADDR=(not set): need the DNS name of node 0")
    if {"NNODES", "NODE_RANK"} <= numbers.keys() and numbers["NODE_RANK"] >= numbers["NNODES"]:
        problems.append(f"NODE_RANK={numbers['NODE_RANK']}: must be below NNODES={numbers['NNODES']}")
    if problems:
        raise PlanError("; ".join(problems))
    return World(
        nodes=numbers["NNODES"],
        node_rank=numbers["NODE_RANK"],
        processes=numbers["NPROC_PER_NODE"],
        master=environ["MASTER_ADDR"],
        port=numbers["MASTER_PORT"],
        run_id=environ.get("RUN_ID", "run"),
        attempt=environ.get("ATTEMPT", "0"),
    )


def wait_for_name(name: str, deadline_s: float, poll_s: float = 1.0) -> str | None:
    """Resolve `name`, again and again until the deadline: a pod's DNS record may come after the pod. None: too late."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)[0][4][0]
        except (socket.gaierror, UnicodeError):  # UnicodeError: no name at all, such as a..b
            if time.monotonic() >= end:
                return None
            time.sleep(poll_s)


def torchrun_command(world: World, deadline_s: int, program: list[str]) -> list[str]:
    # read_timeout is also how long a node waits for the store of node 0 to appear.
    settings = {
        "is_host": str(world.node_rank == 0).lower(),
        "join_timeout": deadline_s,
        "read_timeout": deadline_s,
    }
    return [
        sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={world.nodes}",
        f"--nproc-per-node={world.processes}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={world.master}:{world.port}",
        f"--rdzv-id={world.run_id}-{world.attempt}",
        f"--rdzv-conf={','.join(f'{key}={value}' for key, value in settings.items())}",
        f"--local-addr={world.master if world.node_rank == 0 else socket.getfqdn()}",
        "--max-restarts=0",
        *program,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="ddp-launch", description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=int, default=600, help="seconds for the world to form")
    parser.add_argument("program", nargs="+", help="what torchrun runs: SCRIPT ARGS… or -m MODULE ARGS…, after --")
    args = parser.parse_args()
    try:
        world = read_world(dict(os.environ))
    except PlanError as problem:
        end(USAGE, f"the plan is wrong: {problem}")
    log("ENV", nnodes=world.nodes, nproc_per_node=world.processes, master=f"{world.master}:{world.port}",
        run_id=world.run_id, attempt=world.attempt)  # fmt: skip
    address = wait_for_name(world.master, args.deadline)
    if address is None:
        end(NO_DNS, f"{world.master} did not resolve within {args.deadline} s: is the pod of node 0 running?")
    log("DDP", master=world.master, address=address, is_host=world.node_rank == 0)
    # The pod's own variables for torchrun would only repeat, or contradict, the command line.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PET_")}
    child = subprocess.Popen(torchrun_command(world, args.deadline, args.program), env=environ)
    stopped = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: (stopped.append(number), child.send_signal(number)))
    code = child.wait()
    if stopped:
        end(143, f"stopped by {signal.Signals(stopped[0]).name}")
    if code:
        end(code if code > 0 else 1, f"torchrun exited {code}: the error is above this line")
    log("DONE", world=world.nodes * world.processes)
    sys.exit(0)


def end(code: int, why: str) -> None:
    """Print the one verdict line, leave it where Kubernetes shows it, and exit."""
    log("FATAL", exit_code=code, why=why)
    write_termination_message(f"exit code {code}: {why}")
    sys.exit(code)


if __name__ == "__main__":
    main()
