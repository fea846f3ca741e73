"""Node info of the preflight: collection, check of one node, comparison of all nodes."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import time
from collections import Counter
from pathlib import Path

from gpuworker.launch import gpus
from gpuworker.launch.config import LaunchConfig, pod_name
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo
from gpuworker.runtime.contract import INTERNAL_PREFIX

# Fields that must be the same on every node; the configuration first, as the rest follows from it.
MUST_MATCH = ("nnodes", "nproc_per_node", "program", "image", "launcher", "python", "torch", "cuda",
              "nccl", "gpus", "gpu_model")  # fmt: skip


def collect(config: LaunchConfig, interface: str, address: str) -> NodeInfo:
    """The node info of this node."""
    torch = torch_build()
    visible, driver_problem = gpus.visible()
    disk = config.output_dir or "/tmp"
    info = describe_self()
    info.node = config.node_rank
    info.ip = os.environ.get("POD_IP") or address
    info.interface = interface
    info.nnodes, info.nproc_per_node = config.nnodes, config.nproc_per_node
    info.program = hashlib.sha256(b"\0".join(map(os.fsencode, config.program))).hexdigest()[:12]
    info.image = os.environ.get(f"{INTERNAL_PREFIX}IMAGE", "")
    info.launcher = launcher_digest()
    info.python = platform.python_version()
    info.torch, info.cuda = torch.get("__version__", ""), torch.get("cuda", "")
    info.nccl = nccl_version() if visible else ""
    info.gpus = -1 if visible is None else len(visible)
    info.gpu_model, info.gpu_problem = ", ".join(sorted(set(visible or []))), driver_problem
    info.shm_bytes = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    info.disk_bytes, info.disk_path = shutil.disk_usage(disk).free, disk
    info.clock = time.time()
    return info


def describe_self() -> NodeInfo:
    """Node info with the names only, before there is a configuration."""
    index = os.environ.get("NODE_RANK", "")
    node = int(index) if index.isdecimal() else -1
    return NodeInfo(node=node, pod=pod_name(), host=os.environ.get("NODE_NAME", ""))


def failure_here(error: Exception, phase: str = "run") -> Failure:
    """An error of this node as the other nodes can be given it: it names this node."""
    node = format_node(describe_self())
    if not isinstance(error, Failure):
        return Failure("launcher-failed", f"{node}: {type(error).__name__}: {error}", phase)
    return (
        error
        if node in error.reason
        else Failure(error.cause, f"{node}: {error.reason}", error.phase)
    )


def launcher_digest() -> str:
    """Digest of the launcher's sources."""
    whole = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def torch_build() -> dict[str, str]:
    """Variables of torch's version file. An import of torch would take seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = file.read_text() if file and file.exists() else ""
    return {
        name: value
        for name, value in re.findall(r"^(\w+)(?::[^=]+)? *= *'([^']*)'", text, re.MULTILINE)
    }


def nccl_version() -> str:
    for found in importlib.metadata.distributions():
        if (found.metadata["Name"] or "").startswith("nvidia-nccl"):
            return found.version
    try:  # NVIDIA's images have it as a system library
        number = ctypes.c_int()
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
        return str(number.value)
    except OSError:
        return ""


def check_self(config: LaunchConfig, info: NodeInfo) -> None:
    """Compare one node with what the run requests. Raises the failure node-unfit."""
    problems = []
    if 0 <= info.gpus < config.gpus_per_node:
        why = f" ({info.gpu_problem})" if info.gpu_problem else ""
        problems.append(f"{info.gpus} GPUs{why}, {config.gpus_per_node} expected")
    if not info.torch:
        problems.append("no torch for this Python")
    if info.shm_bytes < config.min_shm:
        problems.append(
            f"/dev/shm has {size(info.shm_bytes)}, at least {size(config.min_shm)} expected"
        )
    if info.disk_bytes < config.min_disk:
        problems.append(
            f"{info.disk_path} has {size(info.disk_bytes)} free, "
            f"at least {size(config.min_disk)} expected"
        )
    if problems:
        raise Failure("node-unfit", f"{format_node(info)}: {'; '.join(problems)}", "preflight")


def compare(config: LaunchConfig, nodes: list[NodeInfo]) -> None:
    """Compare the nodes with each other, on node 0. Raises nodes-differ and node-unfit."""
    for name in MUST_MATCH:
        values = [str(getattr(info, name)) for info in nodes]
        counts = Counter(values)
        if len(counts) > 1:
            # The majority is right; of two equally large parts, the part of node 0.
            majority = max(counts, key=lambda value: (counts[value], value == values[0]))
            outliers = [
                info for info, value in zip(nodes, values, strict=True) if value != majority
            ]
            named = ", ".join(
                f"{format_node(info)} has {getattr(info, name) or 'none'}" for info in outliers[:8]
            )
            more = f" and {len(outliers) - 8} more" if len(outliers) > 8 else ""
            reason = f"{name}: {named}{more}; the other nodes have {majority or 'none'}"
            raise Failure("nodes-differ", reason, "preflight")
    skewed = [info for info in nodes if abs(info.clock_skew) > config.max_clock_skew]
    if skewed:
        # If most clocks seem wrong, the clock of node 0 is.
        if len(skewed) > len(nodes) / 2:
            skew = sorted(info.clock_skew for info in skewed)[len(skewed) // 2]
            reason = f"{format_node(nodes[0])}: clock {-skew:+.0f} s off the other nodes'"
            raise Failure("node-unfit", reason, "preflight")
        named = ", ".join(
            f"{format_node(info)}: clock {info.clock_skew:+.0f} s off" for info in skewed[:8]
        )
        raise Failure(
            "node-unfit", f"{named}; at most {config.max_clock_skew:g} s allowed", "preflight"
        )


def format_node(info: NodeInfo) -> str:
    """Name of a node in every message: `node 1 (pod run-1 on n1)`."""
    parts = [f"pod {info.pod}" if info.pod else "", f"on {info.host}" if info.host else ""]
    where = " ".join(filter(None, parts))
    return f"node {info.node if info.node >= 0 else '?'}" + (f" ({where})" if where else "")


def size(number: float) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if number < 1024:
            return f"{number:.4g}{unit}"
        number /= 1024
    return f"{number:.4g}Ti"
