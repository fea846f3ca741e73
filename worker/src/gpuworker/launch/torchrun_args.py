"""Arguments and environment of torchrun."""

from __future__ import annotations

import os
import re
import sys

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.node_info import torch_build
from gpuworker.runtime.contract import INTERNAL_PREFIX

FLIGHT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
# torchrun's own options that a user may set by variable. The launcher sets the others.
PASSED = tuple(f"PET_{name}" for name in (
    "DUPLICATE_STDERR_FILTERS", "DUPLICATE_STDOUT_FILTERS", "EVENT_LOG_HANDLER", "LOCAL_RANKS_FILTER", "LOGS_SPECS",
    "LOG_DIR", "LOG_LINE_PREFIX_TEMPLATE", "MONITOR_INTERVAL", "NUMA_BINDING", "REDIRECTS", "ROLE",
    "SIGNALS_TO_HANDLE", "TEE", "VIRTUAL_LOCAL_RANK",
))  # fmt: skip
DEBUG = {"LOGLEVEL": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "INFO"}


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def arguments(config: LaunchConfig, rendezvous_id: str, master: str, runner: str) -> list[str]:
    """torchrun's command line. `master` is node 0's address, not its name: the run needs no DNS from here on.

    `runner`: path of rank_runner.py, which torchrun starts for each rank.
    """
    join = config.timeouts["rendezvous-timeout"]
    endpoint = f"{bracketed(master)}:{config.master_port}"
    # Only torchrun's rank 0 must be reachable by this name. For the others it is a label, and ranks follow the order of
    # labels: so rank = node index also under c10d and etcd, also with ten nodes or more.
    label = master if config.node_rank == 0 else f"~node-{config.node_rank:05d}"
    is_host = str(config.node_rank == 0).lower()
    backends = {
        # Explicit, because torchrun's own guess at the host of the store fails with Services and with slow DNS.
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                 f"--rdzv-conf=is_host={is_host},join_timeout={join},read_timeout={join}"],
        "static": ["--rdzv-backend=static", f"--rdzv-endpoint={endpoint}", f"--node-rank={config.node_rank}",
                   f"--rdzv-conf=timeout={join}", f"--master-addr={master}", f"--master-port={config.master_port}"],
        "etcd": ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={config.etcd}",
                 f"--rdzv-conf=join_timeout={join},read_timeout={join}"],
    }  # fmt: skip
    mode = [] if not config.python_program else ["--python"] if config.rank_wrapper else ["--bare-python"]
    program = [sys.executable, "-I", "-S", runner, *mode, *config.command]
    return [
        f"--nnodes={config.nnodes}", f"--nproc-per-node={config.nproc_per_node}", *backends[config.backend],
        f"--rdzv-id={rendezvous_id}", f"--local-addr={label}",
        "--max-restarts=0",  # a failed rank ends the world; the launcher or the workload restarts it
        "--no-python", "--", *program,  # without -- torchrun takes flags of the program for its own
    ]  # fmt: skip


def preload_environment(config: LaunchConfig, modules: str) -> dict[str, str]:
    """Environment while torchrun imports torch. `modules`: a folder of modules for torchrun only."""
    more = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(DEBUG if config.debug else {})}
    return {**more, **os.environ, "PYTHONPATH": ":".join(filter(None, [modules, os.environ.get("PYTHONPATH")]))}


def environment(config: LaunchConfig, attempt: int, interface: str, folder: str, output: str) -> dict[str, str]:
    """This process's environment without what would contradict the arguments. The user's own settings win.

    `output`: the folder for flight records and the output of ranks.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PET_") or key in PASSED}
    flight = f"{output}/flight-"
    defaults = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        # A rank waits four times as long for its flight record before it ends: torch's 15 s would make that a minute.
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # torchrun's own default, 1, can lose the flight record
        "TORCH_FR_DUMP_TEMP_FILE": flight,
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(config.timeouts["grace-period"] + 5),  # the launcher is first
        "OMP_NUM_THREADS": str(max(1, cpus() // config.nproc_per_node)),
        "PYTHONUNBUFFERED": "1",
        **FLIGHT,
        **flight_variables_before_2_11(flight),
        **(DEBUG if config.debug else {}),
    }
    fixed = {
        "ATTEMPT": str(attempt),
        f"{INTERNAL_PREFIX}LAUNCH_FOLDER": folder,
        f"{INTERNAL_PREFIX}STARTUP_COLLECTIVE_TIMEOUT": str(config.timeouts["startup-collective-timeout"]),
        f"{INTERNAL_PREFIX}COLLECTIVE_TIMEOUT": str(config.timeouts["collective-timeout"]),
        f"{INTERNAL_PREFIX}RANK_PREFIX": "1" if config.rank_prefix else "",
        f"{INTERNAL_PREFIX}RANK_LOGS": output if config.rank_logs else "",
        f"{INTERNAL_PREFIX}OUTPUT": "torchrun" if config.torchrun_output else "",
    }
    return {**defaults, **kept, **fixed}


def flight_variables_before_2_11(flight: str) -> dict[str, str]:
    """Variables of the flight recorder before torch 2.11, which warns of them."""
    version = re.match(r"(\d+)\.(\d+)", torch_build().get("__version__", ""))
    if version and (int(version[1]), int(version[2])) < (2, 11):
        return {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": flight, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    return {}


def cpus() -> int:
    """CPUs that this container may use: its quota, which Python does not read, or its affinity."""
    own = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return own if quota == "max" else max(1, min(own, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return own
