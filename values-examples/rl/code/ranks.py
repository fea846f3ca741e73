"""Remote calls between the ranks of a group: JSON over HTTP, with the standard library only."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8080
ME = os.uname().nodename  # TASK-RANK


def call(rank: str, function: str, message: object = None) -> object:
    """Result of a function of a rank such as trainer-0. Retries while the rank starts or its pod is replaced."""
    url = f"http://{rank}.{os.environ['SKYPILOT_JOBGROUP_NAME']}:{PORT}/{function}"
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, json.dumps(message).encode(), timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Server(ThreadingHTTPServer):
    """Serves each function under its name, with one thread per call."""

    daemon_threads = False  # close() waits for running calls
    request_queue_size = 64

    def __init__(self, **functions: Callable[[object], object]):
        self.functions = functions
        super().__init__(("", PORT), Handler)

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.server.functions[self.path[1:]](message)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass  # there are thousands of calls
