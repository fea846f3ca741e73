"""Request handler that the node server and the collector share: paths, health, response headers, a silent log."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

TEXT = "text/plain; charset=utf-8"


class ReportHandler(BaseHTTPRequestHandler):
    """Answer GET requests of `paths` by `get`, /healthz with 200 while the server runs, and other paths with 404."""

    paths: tuple[str, ...] = ()
    timeout = 30  # seconds that a silent client may hold a thread

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, body and content type for one of `paths`."""
        raise NotImplementedError

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self.respond(200, "alive\n", TEXT)
        elif path in self.paths:
            self.respond(*self.get(path))
        else:
            self.respond(404, f"not found; paths: {', '.join(self.paths)}, /healthz\n", TEXT)

    def respond(self, status: int, body: str, content_type: str) -> None:
        encoded = body.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(encoded)))
        self.send_header("X-Content-Type-Options", "nosniff")
        # Pages contain names from reports. Whatever these names are, no script runs and nothing is loaded.
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_) -> None:
        """Log nothing: the kubelet probes every few seconds."""
