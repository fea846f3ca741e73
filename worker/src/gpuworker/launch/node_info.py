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
import statistics
from collections import Counter
from pathlib import Path

from gpuworker.launch import gpus
from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo
from gpuworker.runtime.contract import INTERNAL_PREFIX

# Fields that must be the same on every node; the configuration first, as the rest follows from it.
MUST_MATCH = ("nnodes", "nproc_per_node", "program", "image", "launcher", "python", "torch", "cuda",
              "nccl", "gpus", "gpu_model")  # fmt: skip
NAMED = 8


def describe_self(node: int) -> NodeInfo:
    """Node info with the names only."""
    pod = os.environ.get("POD_NAME") or os.uname().nodename
    return NodeInfo(node=node, pod=pod, host=os.environ.get("NODE_NAME", ""))


def collect(config: LaunchConfig, interface: str, address: str) -> NodeInfo:
    """The node info of this node."""
    torch, info = torch_build(), describe_self(config.node_rank)
    visible, info.gpu_problem = gpus.visible()
    info.ip, info.interface = os.environ.get("POD_IP") or address, interface
    info.nnodes, info.nproc_per_node = config.nnodes, config.nproc_per_node
    info.program = digest(b"\0".join(map(os.fsencode, config.program)))
    info.image = os.environ.get(f"{INTERNAL_PREFIX}IMAGE", "")
    sources = sorted(Path(__file__).parent.glob("*.py"))
    info.launcher = digest(b"".join(path.read_bytes() for path in sources))
    info.python = platform.python_version()
    info.torch, info.cuda = torch.get("__version__", ""), torch.get("cuda", "")
    info.nccl = nccl_version() if visible else ""
    info.gpus = -1 if visible is None else len(visible)
    info.gpu_model = ", ".join(sorted(set(visible or [])))
    info.shm_bytes = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    info.disk_path = config.output_dir or "/tmp"
    info.disk_bytes = shutil.disk_usage(info.disk_path).free
    return info


def failure_here(error: Exception, node: int) -> Failure:
    """An error of this node as the other nodes can be given it: it names this node."""
    name = format_node(describe_self(node))
    if isinstance(error, Failure):
        return Failure(error.cause, f"{name}: {error.reason}")
    return Failure("launcher-failed", f"{name}: {type(error).__name__}: {error}")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


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
        raise Failure("node-unfit", "; ".join(problems))


def compare(config: LaunchConfig, nodes: list[NodeInfo]) -> None:
    """Compare the nodes with each other, on node 0. Raises nodes-differ and node-unfit."""
    for name in MUST_MATCH:
        values = [getattr(info, name) for info in nodes]
        counts = Counter(values)
        # The majority is right; of two equally large parts, the part of node 0.
        majority = max(counts, key=lambda value: (counts[value], value == values[0]))
        outliers = [info for info in nodes if getattr(info, name) != majority]
        if outliers:
            each = [f"{format_node(info)} has {getattr(info, name) or 'none'}" for info in outliers]
            others = f"the other nodes have {majority or 'none'}"
            raise Failure("nodes-differ", f"{name}: {first(each)}; {others}")
    # Against most of the nodes: the clock that is wrong may be node 0's.
    skews = [info.clock_skew for info in nodes]
    middle = min(statistics.median_low(skews), statistics.median_high(skews), key=abs)
    skewed = [
        f"{format_node(info)}: clock {info.clock_skew - middle:+.0f} s off"
        for info in nodes
        if abs(info.clock_skew - middle) > config.max_clock_skew
    ]
    if skewed:
        reason = f"{first(skewed)}; at most {config.max_clock_skew:g} s allowed"
        raise Failure("node-unfit", reason)


def first(words: list[str]) -> str:
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + more


def format_node(info: NodeInfo) -> str:
    """Name of a node in every message: `node 1 (pod run-1 on n1)`."""
    return f"node {info.node} (pod {info.pod}{f' on {info.host}' if info.host else ''})"


def size(number: float) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if number < 1024:
            return f"{number:.4g}{unit}"
        number /= 1024
    return f"{number:.4g}Ti"
