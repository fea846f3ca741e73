"""The arguments and environment that torchrun gets."""

from __future__ import annotations

import os
import re

from gpuworker.launch.config import Plan
from gpuworker.launch.node_info import torch_build

FLIGHT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
DEBUG = {"LOGLEVEL": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "INFO"}


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def arguments(plan: Plan, attempt_id: str, master: str, inside: str) -> list[str]:
    """`master` is node 0's address, not its name: from here on the run needs no DNS."""
    join = plan.seconds["join"]
    endpoint = f"{bracketed(master)}:{plan.port}"
    # Only torchrun's rank 0 must be reachable by this name. Of the others it is a label, and ranks follow the order of
    # labels: so rank = node index also under c10d and etcd, also from ten nodes up.
    label = master if plan.node == 0 else f"~node-{plan.node:05d}"
    backends = {
        # Told, not guessed: torchrun's guess who hosts the store goes wrong with Services and with slow DNS.
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                 f"--rdzv-conf=is_host={str(plan.node == 0).lower()},join_timeout={join},read_timeout={join}"],
        "static": ["--rdzv-backend=static", f"--rdzv-endpoint={endpoint}", f"--node-rank={plan.node}",
                   f"--rdzv-conf=timeout={join}", f"--master-addr={master}", f"--master-port={plan.port}"],
        "etcd": ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={plan.etcd}",
                 f"--rdzv-conf=join_timeout={join},read_timeout={join}"],
    }  # fmt: skip
    program = list(plan.program) if plan.program[0] == "--no-python" else [inside, *plan.program]
    return [
        f"--nnodes={plan.nodes}", f"--nproc-per-node={plan.processes}", *backends[plan.backend],
        f"--rdzv-id={attempt_id}", f"--local-addr={label}",
        "--max-restarts=0",  # one lost rank ends the world; the whole set starts again from outside
        *program,
    ]  # fmt: skip


def early(plan: Plan, modules: str) -> dict[str, str]:
    """The environment while it imports torch; `modules` is for torchrun only."""
    more = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(DEBUG if plan.debug else {})}
    return {**more, **os.environ, "PYTHONPATH": ":".join(filter(None, [modules, os.environ.get("PYTHONPATH")]))}


def environment(plan: Plan, go: dict, interface: str, folder: str, flight: str) -> dict[str, str]:
    """That of this process without what would contradict the arguments; the user's own settings win."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PET_")}
    defaults = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # torchrun's own default, 1, can lose the flight record
        "TORCH_FR_DUMP_TEMP_FILE": flight,
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(plan.seconds["grace"]),
        "OMP_NUM_THREADS": str(max(1, cpus() // plan.processes)),
        "PYTHONUNBUFFERED": "1",
        **FLIGHT,
        **old_names(flight),
        **(DEBUG if plan.debug else {}),
    }
    fixed = {
        "ATTEMPT": str(go["attempt"]),
        "DDP_LAUNCH_FOLDER": folder,
        "DDP_LAUNCH_START_TIMEOUT": str(plan.seconds["start-timeout"]),
        "DDP_LAUNCH_WORK_TIMEOUT": str(plan.seconds["work-timeout"]),
    }
    return {**defaults, **kept, **fixed}


def old_names(flight: str) -> dict[str, str]:
    """The flight recorder's variables before torch 2.13, which warns of them."""
    version = re.match(r"(\d+)\.(\d+)", torch_build().get("__version__", ""))
    if version and (int(version[1]), int(version[2])) < (2, 13):
        return {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": flight, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    return {}


def cpus() -> int:
    """Those that this container may use: its quota, which Python does not know, or its affinity."""
    own = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return own if quota == "max" else max(1, min(own, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return own
