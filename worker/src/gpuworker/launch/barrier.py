r"""group-barrier: hold every rank of a group until all of them are here, or fail and name the missing ones.

  group-barrier --self trainer-0 --domain rl.default.svc.cluster.local --deadline 600 \
    --node-ips-file /group/state/node_ips rollout=2 trainer=1

Runs in an init container, after the task's image has started once. Two things must hold before any rank goes on:
every name of the group resolves here, and the first rank has heard that from every other. Names alone would not do:
a pod has an address before its image is pulled, and a rank that ends early takes its name with it, so a late one
would wait for it for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from pathlib import Path

from gpuworker.log import log, write_termination_message

PORT = 29499
FAILED = 66  # nodes missing
GO = b"go"
HELLO_S = 5  # how long a caller may take to say its name


class Missing(Exception):
    """The deadline passed; the message names who was missing and what to look at."""


def resolve_all(names: list[str], domain: str, end: float) -> dict[str, str]:
    """Host -> address for every name; the trailing dot keeps the resolver from trying its search list."""
    found: dict[str, str] = {}
    while True:
        for name in names:
            if name not in found:
                with contextlib.suppress(socket.gaierror, UnicodeError):
                    found[name] = socket.getaddrinfo(f"{name}.{domain}.", None, proto=socket.IPPROTO_TCP)[0][4][0]
        waiting = [name for name in names if name not in found]
        if not waiting:
            return found
        if time.monotonic() >= end:
            raise Missing(f"no pod with an address for {', '.join(waiting)}: not scheduled, or not created")
        time.sleep(1)


def lead(self_name: str, names: list[str], end: float) -> None:
    """Wait for a line from every other rank, then let all go."""
    waiting = set(names) - {self_name}
    callers: dict[str, socket.socket] = {}
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.create_server(("", PORT), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        while waiting:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(sorted(waiting))
                for caller in callers.values():
                    with contextlib.suppress(OSError):
                        caller.sendall(missing.encode())
                    caller.close()
                raise Missing(f"{missing}: the pod has an address but did not start (image pull? crash?)") from None
            connection.settimeout(HELLO_S)
            name = ""
            with contextlib.suppress(OSError, UnicodeDecodeError):
                name = connection.makefile().readline(256).strip()
            if name not in names:
                connection.close()  # a stranger
                continue
            if name in callers:
                callers[name].close()  # a rank that calls again has lost its first connection
            callers[name] = connection
            waiting.discard(name)
            log("BARRIER", here=name, missing=len(waiting))
        for caller in callers.values():
            with contextlib.suppress(OSError):  # it will call again and find nobody: it fails, and says so
                caller.sendall(GO)
                caller.close()


def follow(self_name: str, leader: str, address: str, end: float) -> None:
    """Tell the leader that we are here and wait for its word; call again until the deadline if it is not there yet."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), timeout=5) as connection:
            connection.sendall(f"{self_name}\n".encode())
            connection.settimeout(max(0.01, end + 10 - time.monotonic()))  # the leader knows better who is missing
            answer = connection.makefile("rb").read()
            if answer == GO:
                return
            if answer:
                raise Missing(f"{answer.decode(errors='replace')}: the first rank, {leader}, did not hear from it")
        if time.monotonic() >= end:
            raise Missing(f"{leader}: the first rank has an address but its barrier does not answer on port {PORT}")
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="group-barrier", description=__doc__.splitlines()[0])
    parser.add_argument("--self", required=True, dest="self_name", help="this rank, as in the list")
    parser.add_argument("--domain", required=True, help="what follows the names in DNS")
    parser.add_argument("--deadline", type=float, default=600, help="seconds to wait for all")
    parser.add_argument("--node-ips-file", type=Path, required=True, help="gets the addresses of this task's ranks")
    parser.add_argument("tasks", nargs="+", help="every task of the group with its ranks, TASK=N; the first rank leads")
    args = parser.parse_args()
    tasks = [[f"{name}-{rank}" for rank in range(int(count))] for name, count in (t.split("=") for t in args.tasks)]
    names = [name for task in tasks for name in task]
    own_task = next(task for task in tasks if args.self_name in task)
    end = time.monotonic() + args.deadline
    leader = names[0]
    log("BARRIER", rank=args.self_name, ranks=len(names), leader=leader, deadline_s=args.deadline)
    try:
        addresses = resolve_all(names, args.domain, end)
        if args.self_name == leader:
            lead(leader, names, end)
        else:
            follow(args.self_name, leader, addresses[leader], end)
    except Missing as missing:
        why = f"after {args.deadline:g} s these ranks were missing: {missing}. Look at kubectl get pods, describe pod"
        log("FATAL", exit_code=FAILED, why=why)
        write_termination_message(why)
        sys.exit(FAILED)
    args.node_ips_file.write_text("\n".join(addresses[name] for name in own_task) + "\n")
    log("BARRIER", rank=args.self_name, released=True)


if __name__ == "__main__":
    main()
