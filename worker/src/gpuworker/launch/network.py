"""Finding node 0, this node's own address and interface, and what a port that is not ours does."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import struct
import threading
import time

from gpuworker.launch.config import Plan
from gpuworker.launch.failure_causes import Verdict
from gpuworker.runtime.log import log

SIOCGIFADDR = 0x8915
STALE_S = 40  # CoreDNS as kubeadm installs it, and NodeLocal DNSCache, keep an answer for up to 30 s


async def look_up(name: str) -> str:
    """One address of a name. In a daemon thread: a look-up that hangs must not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def give(method: str, value: object) -> None:
        if not answer.done():
            getattr(answer, method)(value)

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
            loop.call_soon_threadsafe(give, "set_result", found)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name at all, such as a..b
            loop.call_soon_threadsafe(give, "set_exception", OSError(str(error)))

    threading.Thread(target=ask, daemon=True).start()
    return await answer


async def resolve(plan: Plan, end: float) -> str:
    """Node 0's address. A pod's DNS record may come well after the pod, so ask until the deadline.

    On node 0 it must be one of its own, or the others knock at another door. That may take a while too: caches give
    the address of the pod that was node 0 before.
    """
    tried, error, wrong, until = 0, "no answer", "", end
    while (now := time.monotonic()) < until:
        tried += 1
        try:
            address = await asyncio.wait_for(look_up(plan.master), until - now)
            if plan.node or is_own(address):
                return address
            if not wrong:
                until = min(end, now + STALE_S)
                log("DDP", phase="resolve", waits=f"{plan.master} is {address}, which node 0 does not have")
            wrong = address
        except asyncio.TimeoutError:
            error = "no answer from DNS"
        except OSError as problem:
            error = str(problem)
        await asyncio.sleep(min(0.1 * tried, 0.5, max(0, until - time.monotonic())))
    if wrong:
        own = os.environ.get("POD_IP") or socket.gethostname()
        raise Verdict("wrong-name", f"{plan.master} is {wrong}, and node 0 ({own}) has no such address", "resolve")
    why = f"{plan.master} did not resolve within {plan.seconds['deadline']} s ({tried} times asked, last: {error})"
    raise Verdict("no-name", why, "resolve")


def is_own(address: str) -> bool:
    """Whether this node has the address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def free_port(port: int) -> None:
    """On node 0: the rendezvous store needs this port in a moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Verdict("port-taken", f"port {port} is taken on node 0", "preflight") from None
            raise Verdict("port-taken", f"port {port} of node 0: {error}", "preflight") from None


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
                found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    except OSError:
        pass  # no IPv6 here
    return found


def resolv_conf() -> str:
    """Where this pod asks for names."""
    try:
        with open("/etc/resolv.conf") as file:
            return "; ".join(line.strip() for line in file if line.strip() and not line.startswith("#"))
    except OSError as error:
        return str(error)


def choose_interface(plan: Plan, master: str) -> tuple[str, str]:
    """Interface and own address of the route to node 0. What the plan or the environment names must exist."""
    found = interfaces()
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, plan.port))  # sends nothing; the kernel picks the route
        except OSError as error:
            raise Verdict("interface", f"no route to node 0 at {master}: {error}", "interface") from None
        address = probe.getsockname()[0]
    there = ", ".join(f"{name} {' '.join(own)}".strip() for name, own in found.items())
    wanted = {"--interface": plan.interface, "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "")}
    for source, names in wanted.items():
        for name in filter(None, names.split(",")):
            if name not in found:
                raise Verdict(
                    "interface", f"{source}={name}: there is no such interface; there are: {there}", "interface"
                )
    nccl = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if nccl and not any(nccl_takes(nccl, name) for name in found):
        raise Verdict("interface", f"NCCL_SOCKET_IFNAME={nccl} fits none of: {there}", "interface")
    if plan.interface:
        first = plan.interface.split(",")[0]
        same = [own for own in found[first] if (":" in own) == (":" in master)]
        return plan.interface, same[0] if same else address
    if address.startswith("127.") or address == "::1":
        return "lo", address
    name = next((name for name, own in found.items() if address in own), "")
    if not name:
        raise Verdict("interface", f"no interface has {address}, the route to node 0; there are: {there}", "interface")
    return name, address


def nccl_takes(setting: str, name: str) -> bool:
    """NCCL's own rule: names are prefixes, `=` asks for the whole name, `^` excludes."""
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    names = setting.lstrip("^=").split(",")
    fits = name in names if exact else any(name.startswith(part) for part in names)
    return fits != exclude


def why_not(error: BaseException | None, answer: bytes | None) -> tuple[str, str]:
    """What a port that is no launcher's did -> row of the table and words."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)) or getattr(error, "errno", 0) in (
        errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
    ):  # fmt: skip
        return "dropped", "does not answer"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "closes", "accepts and closes"
    if isinstance(error, OSError):
        return "refused", f"refuses ({os.strerror(error.errno) if error.errno else error})"
    if answer is None:
        return "silent", "accepts and stays silent"
    if answer == b"":
        return "closes", "accepts and closes"
    text = re.sub(r"[^ -~]", ".", answer[:40].decode("latin-1"))
    return "stranger", f"answers {text!r}, which no launcher says"
