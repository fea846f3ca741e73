"""Bytes that a pod which is not of a release may send to a port: seeded, endless, of every kind."""

import contextlib
import itertools
import random
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

NONCE = b"0" * 32 + b"\n"
MIB = b"x" * (1 << 20)
OVERSIZE_MIB = 200  # of a line; a receiver without a limit would need it as memory


def flipped(valid: bytes, rng: random.Random) -> bytes:
    changed = bytearray(valid)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


MAKERS = {
    "garbage": lambda valid, rng: rng.randbytes(rng.randrange(1, 4096)) + b"\n",
    "oversize": lambda valid, rng: valid[: rng.randrange(len(valid))],
    "nested": lambda valid, rng: (
        rng.choice([b"[", b'{"a":', b'[{"type":']) * rng.randrange(1000, 100_000) + b"\n"
    ),
    "cut": lambda valid, rng: valid[: rng.randrange(len(valid))],
    "forged": lambda valid, rng: valid * rng.randrange(1, 20),
    "signed": lambda valid, rng: rng.randbytes(32).hex().encode() + b" " + valid,
    "numbers": lambda valid, rng: valid.replace(
        b"1", rng.choice([b"1e999", b"-1", b"9" * 5000, b"NaN"])
    ),
    "flipped": flipped,
    "http": lambda valid, rng: (
        b"POST /reports HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % rng.choice([0, 9, 1 << 40])
        + valid
    ),
    "empty": lambda valid, rng: b"\n" * rng.randrange(1000),
}


def messages(valid: bytes, seed: object) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Kind and parts of one connection each; `valid` is a message of the protocol without a key."""
    rng = random.Random(f"{seed}")
    for first in itertools.cycle((NONCE, b"")):
        for kind in rng.sample([*MAKERS], len(MAKERS)):
            parts = [first + MAKERS[kind](valid, rng)]
            yield (
                kind,
                itertools.chain(parts, itertools.repeat(MIB, OVERSIZE_MIB))
                if kind == "oversize"
                else parts,
            )


def deliver(address: str, port: int, parts: Iterable[bytes]) -> bytes:
    """Send what the other side takes, and return what it answers until it closes the connection."""
    answer = b""
    with socket.create_connection((address, port), timeout=60) as connection:
        with contextlib.suppress(OSError):  # it closed the connection first
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    return answer


def listens(address: str, port: int) -> bool:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection((address, port), timeout=60),
    ):
        return True
    return False


@contextlib.contextmanager
def slow_clients(address: str, port: int, valid: bytes, count: int) -> Iterator[None]:
    """Connections that send part of a message and then nothing, for as long as the context lasts."""
    with contextlib.ExitStack() as held:
        for number in range(count):
            connection = held.enter_context(socket.create_connection((address, port), timeout=60))
            with contextlib.suppress(ConnectionError):
                connection.sendall((NONCE + valid)[: number * len(valid) // count])
        yield


def peak_mib(pid: int) -> int:
    """Most memory that a process had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10
