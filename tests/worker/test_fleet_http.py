"""HTTP of the collector: HEAD, IPv6 and IPv4, compression."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from gpuworker.fleet.http_handler import ReportHandler, ReportServer


class Handler(ReportHandler):
    def get(self, path: str) -> tuple[int, str] | None:
        found = {"/large": "report " * 20_000, "/client": self.client_address[0]}
        return (200, found[path]) if path in found else None


@pytest.fixture
def port() -> Iterator[int]:
    with ReportServer(0, Handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield server.server_port
        server.shutdown()


def ask(host: str, port: int, method: str, path: str) -> tuple[int, str | None, bytes]:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Length"), answer.read()


def has_loopback_of_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return socket.has_dualstack_ipv6()
    return False


@pytest.mark.parametrize("path", ["/client", "/healthz", "/nothing"])
def test_head_answers_as_get_without_the_body(path: str, port: int) -> None:
    status, length, body = ask("127.0.0.1", port, "GET", path)
    assert body and int(length) == len(body)
    assert ask("127.0.0.1", port, "HEAD", path) == (status, length, b"")


@pytest.mark.skipif(not has_loopback_of_ipv6(), reason="this machine has no IPv6")
def test_clients_of_ipv6_are_served(port: int) -> None:
    assert ask("::1", port, "GET", "/client")[2] == b"::1"


def test_an_unchanged_answer_is_not_sent_again(port: int) -> None:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ) as connection:
        connection.request("GET", "/client")
        answer = connection.getresponse()
        tag = answer.getheader("ETag")
        assert answer.read() and tag
    for known, status in ((tag, 304), ('"another"', 200)):
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        ) as connection:
            connection.request("GET", "/client", headers={"If-None-Match": known})
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, status == 200)


def test_a_large_answer_is_compressed_for_who_can_read_it(port: int) -> None:
    plain = ask("127.0.0.1", port, "GET", "/large")[2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/large", headers={"Accept-Encoding": "gzip, br"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
        assert answer.headers["Content-Encoding"] == "gzip" and int(
            answer.headers["Content-Length"]
        ) == len(body)
    assert len(body) < len(plain) / 10 and gzip.decompress(body) == plain
