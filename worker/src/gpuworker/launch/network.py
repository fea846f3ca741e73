"""Network preflight: name of node 0, choice of the interface, what a foreign port is."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import time

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime import machine
from gpuworker.runtime.contract import Tag
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
    problems = [
        f"{source}={name}: no such interface"
        for source, names in (("--interface", config.interface), ("GLOO_SOCKET_IFNAME", gloo))
        for name in names.split(",")
        if name and name not in found
    ]
    if nccl and not any(nccl_takes(nccl, name) for name in found):
        problems.append(f"NCCL_SOCKET_IFNAME={nccl} matches no interface")
    interface = config.interface or next((name for name in found if address in found[name]), "")
    if not interface:
        problems.append(f"no interface has {address}, the route to node 0")
    if problems:
        available = ", ".join(f"{name} {' '.join(own)}".strip() for name, own in found.items())
        reason = f"{problems[0]}; this node has: {available}"
        raise Failure("interface-not-found", reason)
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
