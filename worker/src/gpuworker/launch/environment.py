"""Environment of a rank: torchrun's variables, defaults for network and recorder, and the hook."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.protocol import Orders
from gpuworker.runtime import machine
from gpuworker.runtime.contract import INTERNAL_PREFIX

DEBUG = {
    "LOGLEVEL": "INFO",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "NCCL_DEBUG": "INFO",
}


def of_rank(
    config: LaunchConfig, orders: Orders, local: int, address: str, interface: str, folder: str
) -> dict[str, str]:
    """All variables of a rank. What the user has set wins over every default.

    `address`: node 0's, so that the run needs no DNS from here on. `folder`: has the hook and the
    ranks' folders.
    """
    node = config.node_rank - sum(index < config.node_rank for index in orders.left_out)
    rank = node * config.nproc_per_node + local
    box = f"{folder}/{local}"
    name = f"flight-{config.run_id}-{orders.attempt}-{orders.restarts}-rank"
    flight = f"{config.output_dir or folder}/{name}"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PET_")}
    defaults = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        # Before it ends, a rank waits four times as long for its flight record: 20 s, not 60.
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # torchrun's default, 1, can lose the flight record
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": flight,
        "OMP_NUM_THREADS": str(max(1, machine.cpus() // config.nproc_per_node)),
        "PYTHONUNBUFFERED": "1",
        **(DEBUG if config.debug else {}),
    }
    # As torch.distributed.elastic.agent.server.local_elastic_agent sets them.
    torchrun = {
        "LOCAL_RANK": local,
        "RANK": rank,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "ROLE_NAME": config.role,
        "LOCAL_WORLD_SIZE": config.nproc_per_node,
        "WORLD_SIZE": config.world_size,
        "GROUP_WORLD_SIZE": config.nnodes,
        "ROLE_WORLD_SIZE": config.world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": config.master_port,
        "TORCHELASTIC_RESTART_COUNT": orders.restarts,
        "TORCHELASTIC_MAX_RESTARTS": config.max_restarts_in_place,
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": f"{box}/torchelastic.json",
        # One number per start, which grows, whether pods start again or the program in place.
        "ATTEMPT": orders.attempt * (config.max_restarts_in_place + 1) + orders.restarts,
    }
    if re.match(r"2\.\d\.|2\.10", machine.torch_version()):  # later ones warn of these
        defaults["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = flight
        defaults["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"
    if b"LC_CTYPE=" not in Path("/proc/self/environ").read_bytes():
        inherited.pop("LC_CTYPE", "")  # this Python's own, where there is no locale (PEP 538)
    inherited.pop(f"{INTERNAL_PREFIX}TORCHRUN", "")  # a torchrun in a rank is the image's own
    if orders.left_out:
        inherited["NODE_RANK"] = str(node)
    paths = [each for each in inherited.get("PYTHONPATH", "").split(":") if each]
    hook = {
        "PYTHONPATH": ":".join([f"{folder}/hook", *paths]),
        f"{INTERNAL_PREFIX}RANK_FOLDER": box,
        f"{INTERNAL_PREFIX}COLLECTIVE_TIMEOUT": config.collective_timeout,
    }
    return defaults | inherited | {name: str(value) for name, value in (torchrun | hook).items()}
