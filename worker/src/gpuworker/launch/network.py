"""Network preflight: name of node 0, choice of the interface, what a foreign port is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
import time
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

SIOCGIFADDR = 0x8915
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
    error, wrong, until = "no answer from DNS", "", end
    while (now := time.monotonic()) < until:
        try:
            address = await asyncio.wait_for(look_up(config.master_addr), until - now)
            if config.node_rank or is_own_address(address):
                return address
            if not wrong:
                until = min(end, now + STALE_S)
                reason = f"{config.master_addr} is {address}, which node 0 does not have"
                log(Tag.DDP, phase="resolve", waiting_for=reason)
            wrong = address
        except asyncio.TimeoutError:
            break
        except OSError as problem:
            error = str(problem)
        await asyncio.sleep(RETRY_S)
    if wrong:
        own = os.environ.get("POD_IP") or socket.gethostname()
        reason = f"{config.master_addr} is {wrong}, and node 0 ({own}) has no such address"
        raise Failure("wrong-address", reason)
    timeout_s = config.timeouts["join-timeout"]
    reason = f"{config.master_addr} did not resolve within {timeout_s} s (last: {error})"
    raise Failure("name-not-resolved", reason)


def is_own_address(address: str) -> bool:
    """Whether this node has the address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interfaces() -> dict[str, list[str]]:
    """Interface -> its addresses."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, own in found.items():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                own.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):  # no IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            own = found.setdefault(name, [])
            own.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def choose_interface(config: LaunchConfig, master: str) -> tuple[str, str]:
    """Interface and own address of the route to node 0. Interfaces named by the user must exist."""
    found, family = interfaces(), socket.AF_INET6 if ":" in master else socket.AF_INET
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
    """Cause and words for a port that did not reply as a launcher: an error, or the bytes."""
    number = getattr(found, "errno", None)
    if isinstance(found, (asyncio.TimeoutError, TimeoutError)) and connected:
        return "no-response", "accepts and sends nothing"
    if isinstance(found, (asyncio.TimeoutError, TimeoutError)) or number in NO_ANSWER:
        return "packets-dropped", "does not answer"
    if found == b"" or isinstance(found, (ConnectionResetError, BrokenPipeError)):
        return "connection-closed", "accepts and closes"
    if isinstance(found, OSError):
        return "connection-refused", f"refuses ({os.strerror(number) if number else found})"
    answer = found if isinstance(found, bytes) else b"?"
    text = re.sub(r"[^ -~]", ".", answer[:40].decode("latin-1"))
    return "foreign-service", f"answers {text!r}, which is not a launcher's reply"
