"""Node info of the preflight: collection, check of one node, comparison of all nodes."""

from __future__ import annotations

import hashlib
import os
import platform
from collections import Counter
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo, first
from gpuworker.runtime import machine
from gpuworker.runtime.contract import INTERNAL_PREFIX

# Fields that must be the same on every node; the configuration first, as the rest follows from it.
MUST_MATCH = ("nnodes", "nproc_per_node", "program", "image", "launcher", "python", "torch",
              "gpus", "gpu_model")  # fmt: skip


def describe_self(node: int) -> NodeInfo:
    """Node info with the names only."""
    pod = os.environ.get("POD_NAME") or os.uname().nodename
    return NodeInfo(node=node, pod=pod, host=os.environ.get("NODE_NAME", ""))


def complete(info: NodeInfo, config: LaunchConfig, interface: str) -> None:
    """Add what this node has. Raises the failure node-unfit if it lacks what the run requests."""
    visible, gpu_problem = machine.visible_gpus()
    info.interface, info.torch = interface, machine.torch_version()
    info.nnodes, info.nproc_per_node = config.nnodes, config.nproc_per_node
    info.program = digest(b"\0".join(map(os.fsencode, config.program)))
    info.image = os.environ.get(f"{INTERNAL_PREFIX}IMAGE", "")
    sources = sorted(Path(__file__).parent.glob("*.py"))
    info.launcher = digest(b"".join(path.read_bytes() for path in sources))
    info.python = platform.python_version()
    info.gpus = -1 if visible is None else len(visible)
    info.gpu_model = ", ".join(sorted(set(visible or [])))
    problems = []
    if 0 <= info.gpus < config.gpus_per_node:
        why = f" ({gpu_problem})" if gpu_problem else ""
        problems.append(f"{info.gpus} GPUs{why}, {config.gpus_per_node} expected")
    if not info.torch:
        problems.append("no torch for this Python")
    if problems:
        raise Failure("node-unfit", "; ".join(problems))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def compare(nodes: list[NodeInfo]) -> None:
    """Compare the nodes with each other, on node 0. Raises nodes-differ."""
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


def format_node(info: NodeInfo) -> str:
    """Name of a node in every message: `node 1 (pod run-1 on n1)`."""
    return f"node {info.node} (pod {info.pod}{f' on {info.host}' if info.host else ''})"
