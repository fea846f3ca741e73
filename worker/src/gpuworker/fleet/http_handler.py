"""HTTP server and request handler of the collector: connections, `/healthz`, response headers."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from gpuworker.runtime.line_server import Newest

Answer = tuple[int, str] | tuple[int, str, str]  # status, text and content type
TEXT = "text/plain; charset=utf-8"
# the digest is SHA-256
NONCE_HEADER, DIGEST_HEADER, SIGNATURE_HEADER = "X-Nonce", "X-Digest", "X-Signature"
POSTED = "report-posted/1"  # purpose of a signature
WAITING = "more reports are expected"  # second line of /readyz
MAX_CONNECTIONS = 256
LARGE = 65536  # bytes of an answer that is compressed


def _shut(connection: socket.socket) -> None:
    """Wake the thread of a connection, which then closes it."""
    with contextlib.suppress(OSError):  # the client was faster
        connection.shutdown(socket.SHUT_RDWR)


class ReportServer(ThreadingHTTPServer):
    """Listens on all addresses: of IPv6 and IPv4, or of IPv4 alone if the kernel has no IPv6.

    It has a thread per connection. When there are too many, the oldest connection is closed.
    """

    daemon_threads = True

    def __init__(self, port: int, handler: type[ReportHandler]) -> None:
        self.connections = Newest(MAX_CONNECTIONS, _shut)
        self.connections.make_room()
        super().__init__(("", port), handler, bind_and_activate=False)
        self.socket.close()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self.socket = socket.create_server(
            ("", port), family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=both
        )
        self.server_port = self.socket.getsockname()[1]

    def process_request(self, request: socket.socket, client_address: object) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket, client_address: object) -> None:
        """Log nothing if the client closed its connection, or was closed as the oldest."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class ReportHandler(BaseHTTPRequestHandler):
    """Answer GET and HEAD by `get`, /healthz with 200 while the server runs, and what is not
    found with 404.
    """

    policy = "default-src 'none'"  # Content-Security-Policy
    timeout = 30  # seconds that a silent client may hold a thread

    def get(self, path: str) -> Answer | None:
        """What is at a path, None for nothing."""
        raise NotImplementedError

    def do_GET(self) -> None:
        try:
            path = urlsplit(self.path).path
        except ValueError as error:
            return self.respond(400, f"{error}\n")
        answer = (200, "alive\n") if path == "/healthz" else self.get(path)
        return self.respond(*(answer or (404, "not found\n")))

    def body(self, length: int, seconds: float) -> bytes:
        """What was posted. Raises TimeoutError when the time is over: the other side may send a
        byte now and then for ever.
        """
        end, data = time.monotonic() + seconds, bytearray()
        while len(data) < length:
            self.connection.settimeout(max(0.001, end - time.monotonic()))
            if not (piece := self.rfile.read1(length - len(data))):
                break
            data += piece
        return bytes(data)

    def respond(self, status: int, body: str, content_type: str = TEXT) -> None:
        encoded = body.encode(errors="replace")
        tag = f'"{hashlib.sha256(encoded).hexdigest()}"'
        if status == 200 and self.headers.get("If-None-Match") == tag:
            status, encoded = 304, b""
        headers = {
            "Content-Type": content_type,
            "ETag": tag,
            "Vary": "Accept-Encoding",
            "Cache-Control": "no-cache",  # ask each time whether it changed
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": self.policy,
        }
        if len(encoded) > LARGE and "gzip" in self.headers.get("Accept-Encoding", ""):
            encoded = gzip.compress(encoded, 1)
            headers["Content-Encoding"] = "gzip"
        if status != 304:
            headers["Content-Length"] = str(len(encoded))
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(encoded)

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        """Log nothing: the kubelet probes every few seconds."""
