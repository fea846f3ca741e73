"""Authentication of messages between the pods of one release, with a key from a Secret that only
these pods mount.

A line or a report is sent with its HMAC (RFC 2104). The HMAC covers a nonce of the receiver, so
that nothing can be replayed. Without a key messages are sent as they are, and only a NetworkPolicy
keeps other pods away. Standard library only.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import time
from pathlib import Path

from gpuworker.runtime.contract import KEY_FILE_VARIABLE

SHORTEST_KEY = 16  # bytes
NONCE = re.compile(rb"[0-9a-f]{32}")
NONCE_LIFETIME_S = 60.0


class KeyFileError(Exception):
    """The key cannot be used; the message says why and what to do."""


def load_key() -> bytes:
    """The key of the release, or nothing if the chart was given none. Raises KeyFileError."""
    path = os.environ.get(KEY_FILE_VARIABLE, "")
    if not path:
        return b""
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise KeyFileError(
            f"{path}: {error.strerror}; check authentication.secretName and its Secret"
        ) from None
    if len(key) < SHORTEST_KEY:
        raise KeyFileError(
            f"{path}: {len(key)} bytes; a key has at least {SHORTEST_KEY}: openssl rand -hex 32"
        )
    return key


def new_nonce() -> str:
    return secrets.token_hex(16)


def sign(key: bytes, *parts: bytes | str) -> str:
    """HMAC of the parts, in hexadecimal. Each part is hashed with its length, so that no two
    lists are alike.
    """
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        encoded = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def matches(signature: str | bytes, key: bytes, *parts: bytes | str) -> bool:
    given = signature if isinstance(signature, bytes) else signature.encode(errors="replace")
    return hmac.compare_digest(given, sign(key, *parts).encode())


class LineStream:
    """Lines over one connection, signed if there is a key.

    With a key each side first sends a nonce. Every line then carries the HMAC of its sender's role,
    its number, both nonces and its text. `purpose` names the protocol, so that no line of one is
    valid in another.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, purpose: str
    ):
        self.reader, self.writer, self.key, self.purpose = reader, writer, key, purpose
        self.session = b""
        self.own, self.other = "", ""  # roles
        self.sent = self.received = 0  # lines

    async def start(self, *, client: bool) -> None:
        """Exchange nonces. Raises ValueError if the other side sends something else, and
        OSError.
        """
        if not self.key:
            return
        self.own, self.other = ("client", "server") if client else ("server", "client")
        nonce = new_nonce().encode()
        self.writer.write(nonce + b"\n")
        other = (await self.reader.readline()).removesuffix(b"\n")
        if not NONCE.fullmatch(other):
            raise ValueError("the other side sent no nonce: it has no key")
        nonces = (nonce, other) if client else (other, nonce)
        self.session = sign(self.key, self.purpose, *nonces).encode()

    def write(self, line: bytes) -> None:
        if self.key:
            line = self._signature(self.own, self.sent, line).encode() + b" " + line
            self.sent += 1
        self.writer.write(line)

    async def readline(self) -> bytes:
        """The next line, or nothing at the end. Raises ValueError for a line without a valid
        signature, and OSError.
        """
        line = await self.reader.readline()
        if not self.key or not line:
            return line
        signature, _, line = line.partition(b" ")
        if not matches(signature, self.session, self.other, str(self.received), line):
            raise ValueError("a line without a valid signature")
        self.received += 1
        return line

    def _signature(self, role: str, number: int, line: bytes) -> str:
        return sign(self.session, role, str(number), line)


class NonceIssuer:
    """Nonces for requests of one message each. A nonce is valid for a minute and accepted once.

    It keeps only nonces that a holder of the key has used, so that others cannot fill its memory.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self.used: dict[str, float] = {}  # nonce -> when it was issued

    def issue(self) -> str:
        text = f"{time.monotonic():.3f}-{new_nonce()}"
        return f"{text}-{sign(self.secret, text)}"

    def accept(self, nonce: str) -> bool:
        """Whether a nonce whose message has a valid signature is new. Call it with a lock."""
        text, _, seal = nonce.rpartition("-")
        if not matches(seal, self.secret, text) or nonce in self.used:
            return False
        now, issued = time.monotonic(), float(text.partition("-")[0])
        self.used = {old: when for old, when in self.used.items() if now - when <= NONCE_LIFETIME_S}
        self.used[nonce] = issued
        return now - issued <= NONCE_LIFETIME_S
