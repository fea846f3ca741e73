"""Network preflight: name of node 0, choice of the interface, what a foreign port is."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import struct
import time

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

SIOCGIFADDR = 0x8915
# CoreDNS as kubeadm installs it, and NodeLocal DNSCache, keep an answer for up to 30 s.
STALE_S = 40


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
    tries, error, wrong, until = 0, "no answer", "", end
    while (now := time.monotonic()) < until:
        tries += 1
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
            error = "no answer from DNS"
        except OSError as problem:
            error = str(problem)
        await asyncio.sleep(min(0.1 * tries, 0.5, max(0, until - time.monotonic())))
    if wrong:
        own = os.environ.get("POD_IP") or socket.gethostname()
        reason = f"{config.master_addr} is {wrong}, and node 0 ({own}) has no such address"
        raise Failure("wrong-address", reason, "resolve")
    timeout_s = config.timeouts["join-timeout"]
    last = f"({tries} look-ups, last: {error})"
    reason = f"{config.master_addr} did not resolve within {timeout_s} s {last}"
    raise Failure("name-not-resolved", reason, "resolve")


def is_own_address(address: str) -> bool:
    """Whether this node has the address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def check_port_free(port: int) -> None:
    """Raise port-in-use unless node 0 can listen on the port, as the store of rank 0 will."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Failure(
                    "port-in-use", f"port {port} is in use on node 0", "preflight"
                ) from None
            raise Failure("port-in-use", f"port {port} of node 0: {error}", "preflight") from None


def interfaces() -> dict[str, list[str]]:
    """Interface -> its addresses."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in found:
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name].append(socket.inet_ntoa(answer[20:24]))
            except OSError:
                continue  # it has no IPv4 address
    try:
        with open("/proc/net/if_inet6") as lines:
            for line in lines:
                digits, *_, name = line.split()
                found.setdefault(name, []).append(
                    socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                )
    except OSError:
        pass  # no IPv6
    return found


def resolv_conf() -> str:
    """Name servers and search domains of this pod."""
    try:
        with open("/etc/resolv.conf") as file:
            return "; ".join(
                line.strip() for line in file if line.strip() and not line.startswith("#")
            )
    except OSError as error:
        return str(error)


def choose_interface(config: LaunchConfig, master: str) -> tuple[str, str]:
    """Interface and own address of the route to node 0. Interfaces named by the user must exist."""
    found = interfaces()
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, config.master_port))  # sends nothing; the kernel picks the route
        except OSError as error:
            raise Failure(
                "interface-not-found", f"no route to node 0 at {master}: {error}", "interface"
            ) from None
        address = probe.getsockname()[0]
    available = ", ".join(f"{name} {' '.join(own)}".strip() for name, own in found.items())
    wanted = {
        "--interface": config.interface,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", ""),
    }
    for source, names in wanted.items():
        for name in filter(None, names.split(",")):
            if name not in found:
                reason = f"{source}={name}: no such interface; this node has: {available}"
                raise Failure("interface-not-found", reason, "interface")
    nccl = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if nccl and not any(nccl_takes(nccl, name) for name in found):
        raise Failure(
            "interface-not-found",
            f"NCCL_SOCKET_IFNAME={nccl} matches none of: {available}",
            "interface",
        )
    if config.interface:
        first = config.interface.split(",")[0]
        same = [own for own in found[first] if (":" in own) == (":" in master)]
        return config.interface, same[0] if same else address
    if address.startswith("127.") or address == "::1":
        return "lo", address
    name = next((name for name, own in found.items() if address in own), "")
    if not name:
        reason = f"no interface has {address}, the route to node 0; this node has: {available}"
        raise Failure("interface-not-found", reason, "interface")
    return name, address


def nccl_takes(setting: str, name: str) -> bool:
    """NCCL's own rule: names are prefixes, `=` matches the whole name, `^` excludes."""
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    names = setting.lstrip("^=").split(",")
    fits = name in names if exact else any(name.startswith(part) for part in names)
    return fits != exclude


def classify_port_failure(error: BaseException | None, answer: bytes | None) -> tuple[str, str]:
    """Cause and words for a port that did not reply as a launcher: from the error or the bytes."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)) or getattr(error, "errno", 0) in (
        errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
    ):  # fmt: skip
        return "packets-dropped", "does not answer"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "connection-closed", "accepts and closes"
    if isinstance(error, OSError):
        return (
            "connection-refused",
            f"refuses ({os.strerror(error.errno) if error.errno else error})",
        )
    if answer is None:
        return "no-response", "accepts and sends nothing"
    if answer == b"":
        return "connection-closed", "accepts and closes"
    text = re.sub(r"[^ -~]", ".", answer[:40].decode("latin-1"))
    return "foreign-service", f"answers {text!r}, which is not a launcher's reply"
