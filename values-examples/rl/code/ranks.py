"""Questions between the ranks of a group: JSON over HTTP, with the standard library only."""

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


def ask(rank: str, question: str, message: object = None) -> object:
    """The answer of a rank, such as trainer-0. It may not listen yet, or be away until its pod has been replaced."""
    url = f"http://{rank}.{os.environ['SKYPILOT_JOBGROUP_NAME']}:{PORT}/{question}"
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
    """Answers the question NAME with the function NAME, each in a thread."""

    daemon_threads = False  # close() waits for answers under way
    request_queue_size = 64

    def __init__(self, **answers: Callable[[object], object]):
        self.answers = answers
        super().__init__(("", PORT), Handler)

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.server.answers[self.path[1:]](message)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass  # a line for each of thousands of steps
