"""Preflight: name of node 0, interface, what a foreign port is, the facts of all nodes compared."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import platform
import re
import socket
import time
from collections import Counter
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo, first
from gpuworker.runtime import machine
from gpuworker.runtime.contract import INTERNAL_PREFIX, Tag
from gpuworker.runtime.log import log

# CoreDNS as kubeadm installs it, and NodeLocal DNSCache, keep an answer for up to 30 s.
STALE_S = 40
RETRY_S = 0.3
NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


async def look_up(name: str) -> str:
    """One address of a name, looked up in a thread. Raises OSError."""
    try:
        loop = asyncio.get_running_loop()
        return (await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM))[0][4][0]
    except UnicodeError as error:  # not a name, such as a..b
        raise OSError(str(error)) from None


async def resolve(config: LaunchConfig, end: float) -> str:
    """Address of node 0. Raises name-not-resolved or wrong-address.

    A pod's DNS record may appear well after the pod, so the look-up repeats until `end`. On node 0
    it must be an address of this pod, or the other nodes connect to another pod. That may take a
    while, too: DNS caches return the address of the pod that was node 0 before.
    """
    error, wrong = "no answer from DNS", ""
    while (now := time.monotonic()) < end:
        try:
            address = await asyncio.wait_for(look_up(config.master_addr), end - now)
            if config.node_rank or machine.is_own_address(address):
                return address
            if not wrong:
                end = min(end, now + STALE_S)
                own = os.environ.get("POD_IP") or socket.gethostname()
                wrong = f"{config.master_addr} is {address}, and node 0 ({own}) has no such address"
                log(Tag.DDP, phase="resolve", waiting_for=wrong)
        except (OSError, asyncio.TimeoutError) as problem:
            error = str(problem) or error
        await asyncio.sleep(RETRY_S)
    if wrong:
        raise Failure("wrong-address", wrong)
    timeout_s = config.join_timeout
    reason = f"{config.master_addr} did not resolve within {timeout_s} s (last: {error})"
    raise Failure("name-not-resolved", reason)


def choose_interface(config: LaunchConfig, master: str) -> tuple[str, str]:
    """Interface and own address of the route to node 0. Interfaces named by the user must exist."""
    found, family = machine.interfaces(), socket.AF_INET6 if ":" in master else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, config.master_port))  # sends nothing; the kernel picks the route
        except OSError as error:
            reason = f"no route to node 0 at {master}: {error}"
            raise Failure("interface-not-found", reason) from None
        address = probe.getsockname()[0]
    gloo, nccl = (os.environ.get(f"{name}_SOCKET_IFNAME", "") for name in ("GLOO", "NCCL"))
    interface = config.interface or next((name for name in found if address in found[name]), "")
    problem = "" if interface else f"no interface has {address}, the route to node 0"
    if nccl and not any(nccl_takes(nccl, name) for name in found):
        problem = f"NCCL_SOCKET_IFNAME={nccl} matches no interface"
    for source, names in (("GLOO_SOCKET_IFNAME", gloo), ("--interface", config.interface)):
        if not set(names.split(",")) <= {*found, ""}:
            problem = f"{source}={names}: no such interface"
    if problem:
        available = ", ".join(f"{name} {' '.join(own)}".strip() for name, own in found.items())
        raise Failure("interface-not-found", f"{problem}; this node has: {available}")
    return interface, address


def nccl_takes(setting: str, name: str) -> bool:
    """NCCL's own rule: names are prefixes, `=` matches the whole name, `^` excludes."""
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    names = setting.lstrip("^=").split(",")
    fits = name in names if exact else any(name.startswith(part) for part in names)
    return fits != exclude


def classify_port_failure(found: Exception | bytes, connected: bool = True) -> tuple[str, str]:
    """Cause and detail of a port that did not reply as a launcher: of an error, or of bytes."""
    if isinstance(found, (asyncio.TimeoutError, TimeoutError)):
        return ("no-response" if connected else "packets-dropped"), ""
    if found == b"" or isinstance(found, (ConnectionResetError, BrokenPipeError)):
        return "connection-closed", ""
    if isinstance(found, OSError):
        refused = found.errno not in NO_ANSWER
        return ("connection-refused" if refused else "packets-dropped"), f" ({found})"
    answer = found if isinstance(found, bytes) else b"?"
    text = re.sub(r"[^ -~]", ".", answer[:40].decode("latin-1"))
    return "foreign-service", f" (it answers {text!r})"


def complete(info: NodeInfo, config: LaunchConfig, interface: str) -> None:
    """Add what this node has. Raises the failure node-unfit if it lacks what the run requests."""
    visible, gpu_problem = machine.visible_gpus()
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    # The configuration first, as the rest follows from it.
    info.interface, info.facts = (
        interface,
        {
            "nnodes": config.nnodes,
            "nproc_per_node": config.nproc_per_node,
            "program": digest(b"\0".join(map(os.fsencode, config.program))),
            "image": os.environ.get(f"{INTERNAL_PREFIX}IMAGE", ""),
            "launcher": digest(sources),
            "python": platform.python_version(),
            "torch": machine.torch_version(),
            "gpus": "unknown" if visible is None else len(visible),
            "gpu_model": ", ".join(sorted(set(visible or []))),
        },
    )
    if visible is not None and len(visible) < config.gpus_per_node:
        why = f" ({gpu_problem})" if gpu_problem else ""
        reason = f"{len(visible)} GPUs{why}, {config.gpus_per_node} expected"
        raise Failure("node-unfit", reason)
    if not info.facts["torch"]:
        raise Failure("node-unfit", "no torch for this Python")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def compare(nodes: list[NodeInfo]) -> None:
    """Compare the nodes with each other, on node 0. Raises nodes-differ."""
    nodes = sorted(nodes, key=lambda info: info.node)
    for name in dict.fromkeys(name for info in nodes for name in info.facts):
        values = [info.facts.get(name) for info in nodes]
        counts = Counter(values)
        # The majority is right; of two equally large parts, the part of node 0.
        majority = max(counts, key=lambda value: (counts[value], value == values[0]))
        pairs = zip(nodes, values, strict=True)
        if each := [f"{info.name} has {own or 'none'}" for info, own in pairs if own != majority]:
            others = f"the other nodes have {majority or 'none'}"
            raise Failure("nodes-differ", f"{name}: {first(each)}; {others}")
