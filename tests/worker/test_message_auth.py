"""Signed lines and nonces: what a holder of the key sends arrives, and nothing that anybody else
sends or repeats.
"""

import asyncio

import pytest

from gpuworker.runtime import message_auth
from gpuworker.runtime.contract import KEY_FILE_VARIABLE
from gpuworker.runtime.message_auth import (
    KeyFileError,
    LineStream,
    NonceIssuer,
    load_key,
    matches,
    sign,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Wire:
    """Stands for a StreamWriter: what is written arrives at `peer`."""

    def __init__(self):
        self.bytes, self.peer = b"", asyncio.StreamReader()

    def write(self, data: bytes):
        self.bytes += data
        self.peer.feed_data(data)


async def connected(client_key: bytes = KEY, server_key: bytes = KEY, purpose: str = "test"):
    """Both ends of a connection after the exchange of nonces, and what each has written."""
    up, down = Wire(), Wire()
    client = LineStream(down.peer, up, client_key, purpose)
    server = LineStream(up.peer, down, server_key, "test")
    await asyncio.gather(client.start(client=True), server.start(client=False))
    return client, server, up, down


def run(test):
    asyncio.run(asyncio.wait_for(test, 60))


@pytest.mark.parametrize("key", [KEY, b""])
def test_lines_arrive_in_both_directions(key):
    async def test():
        client, server, up, _ = await connected(key, key)
        for text in (b"one\n", b"\n", b"two words\n", b"\xff\0\n"):
            client.write(text)
            assert await server.readline() == text
            server.write(text)
            assert await client.readline() == text
        assert key or up.bytes.startswith(b"one\n"), "without a key the lines are sent as they are"

    run(test())


def test_nothing_but_the_other_ends_next_line_is_accepted():
    async def test():
        client, server, up, down = await connected()
        client.write(b"first\n")
        server.write(b"reply\n")
        first, reply = up.bytes.splitlines(True)[1], down.bytes.splitlines(True)[1]
        assert await server.readline() == b"first\n"
        forged = [
            b"second\n",
            first,  # repeated
            reply,  # reflected
            sign(OTHER_KEY, "client", "1", b"second\n").encode() + b" second\n",
            sign(KEY, "client", "1", b"second\n").encode() + b" second\n",  # without the nonces
            first.replace(b"first", b"FIRST"),
            b" \n",
            b"\xff \n",
        ]
        for line in forged:
            up.write(line)
            with pytest.raises(ValueError, match="signature"):
                await server.readline()
        client.write(b"second\n")
        assert await server.readline() == b"second\n", "a refused line has no number"

    run(test())


def test_a_recorded_connection_and_another_protocol_are_refused():
    async def test():
        client, _, up, _ = await connected()
        client.write(b"end\n")
        again, down = Wire(), Wire()
        server = LineStream(again.peer, down, KEY, "test")
        again.write(up.bytes)
        await server.start(client=False)
        with pytest.raises(ValueError, match="signature"):
            await server.readline()
        for keys, purpose in (((OTHER_KEY, KEY), "test"), ((KEY, KEY), "other")):
            client, server, *_ = await connected(*keys, purpose)
            client.write(b"end\n")
            with pytest.raises(ValueError, match="signature"):
                await server.readline()

    run(test())


def test_a_client_without_a_key_is_refused_at_its_first_line():
    async def test():
        for first in (
            b'{"type": "Request"}\n',
            b"\n",
            b"",
            b"0" * 31 + b"\n",
            b"0" * 64 + b"\n",
            b"\xff" * 32 + b"\n",
        ):
            up, down = Wire(), Wire()
            up.write(first)
            up.peer.feed_eof()
            with pytest.raises(ValueError, match="nonce"):
                await LineStream(up.peer, down, KEY, "test").start(client=False)

    run(test())


def test_parts_of_a_message_cannot_move():
    assert (
        len({sign(KEY, *parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", ""))})
        == 4
    )
    assert matches(sign(KEY, "a"), KEY, "a")
    assert not matches("é", KEY, "a")


def test_a_nonce_counts_once_and_for_a_minute(monkeypatch):
    issuer = NonceIssuer()
    nonce = issuer.issue()
    assert issuer.accept(nonce)
    assert not issuer.accept(nonce)
    for wrong in (
        "",
        "-",
        "1-2-3",
        NonceIssuer().issue(),
        issuer.issue()[:-1],
        issuer.issue() + "0",
        "é-é",
    ):
        assert not issuer.accept(wrong)
    assert len(issuer.used) == 1, "what has no seal costs no memory"
    late = issuer.issue()
    now = message_auth.time.monotonic()
    monkeypatch.setattr(
        message_auth.time, "monotonic", lambda: now + message_auth.NONCE_LIFETIME_S + 1
    )
    assert not issuer.accept(late)
    assert issuer.accept(issuer.issue())
    assert nonce not in issuer.used


def test_a_key_that_cannot_be_used_is_an_error(tmp_path, monkeypatch):
    assert load_key() == b""
    file = tmp_path / "key"
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(file))
    with pytest.raises(KeyFileError, match="secretName"):
        load_key()
    file.write_bytes(b"short")
    with pytest.raises(KeyFileError, match="5 bytes"):
        load_key()
    file.write_bytes(KEY)
    assert load_key() == KEY
