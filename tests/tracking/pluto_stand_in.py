"""Stand-in for Pluto's server: it implements the protocol of the client pluto-ml 0.0.29. It is not
Pluto.

One address serves all four services that the client uses. Everything is kept in memory.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "stand-in-key"
TERMINAL = ("COMPLETED", "FAILED", "TERMINATED", "CANCELLED")


class FaultyServer(ThreadingHTTPServer):
    """`fault` of every request: a status, `hang` (no response), `slow` (0.5 s), `drop` (the
    connection is closed).
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, handler: type[FaultyHandler]):
        self.lock, self.fault = threading.Lock(), ""
        super().__init__(("127.0.0.1", 0), handler)
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"


class FaultyHandler(BaseHTTPRequestHandler):
    server: FaultyServer

    def apply_fault(self) -> bool:
        """Whether that was the answer."""
        while self.server.fault == "hang":
            time.sleep(0.05)  # until the test ends the fault
        fault = self.server.fault
        if fault == "slow":
            time.sleep(0.5)  # the fault itself
        if fault == "drop":
            self.close_connection = True
        if fault.isdigit():
            self.respond(
                {"error_code": "INTERNAL_ERROR", "message": f"injected status {fault}"}, int(fault)
            )
        return fault == "drop" or fault.isdigit()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def respond(self, data: dict | bytes, code: int = 200):
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # the client has closed the connection

    def log_message(self, *_: object):
        """No log: the tests read the record."""


class Server(FaultyServer):
    """One more fault, `cancel`: a user has cancelled the run."""

    def __init__(self):
        self.runs: dict[int, dict] = {}  # run number -> its data
        super().__init__(Handler)

    def run_of(self, project: str, external_id: str | None, body: dict) -> tuple[int, bool]:
        """Get or create a run, as the real server does: one run per external id of a project, set
        to running.
        """
        for number, run in self.runs.items():
            if external_id and (run["project"], run["externalId"]) == (project, external_id):
                run["config"].update(body)
                run["statuses"].append("RUNNING")
                return number, True
        number = len(self.runs) + 1
        self.runs[number] = {
            "project": project, "externalId": external_id, "config": body, "statuses": ["RUNNING"],
            "joined": 0, "metrics": [],
        }  # fmt: skip
        return number, False


class Handler(FaultyHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self):
        """A file, at the address that /files has returned: /upload/RUN/NAME."""
        self.body()
        self.respond({})

    def do_POST(self):
        body = self.body()
        if self.apply_fault():
            return
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.respond({"error": "Unauthorized", "message": "Invalid API key"}, 401)
            return
        with self.server.lock:
            response, code = self.handle_call(body)
        self.respond(response, code)

    def handle_call(self, body: bytes) -> tuple[dict, int]:
        runs = self.server.runs
        if self.path == "/api/slug":
            return {"organization": {"slug": "stand-in"}}, 200
        if self.path == "/ingest/metrics":
            run = runs[int(self.headers["X-Run-Id"])]
            run["metrics"] += [
                json.loads(line, parse_constant=refuse) for line in body.splitlines() if line
            ]
            return {}, 200
        body = json.loads(body)
        if self.path == "/api/runs/create":
            config = json.loads(body["config"] or "{}")
            number, resumed = self.server.run_of(body["projectName"], body["externalId"], config)
            runs[number]["joined"] += resumed
            url = f"http://{self.headers['Host']}/o/stand-in/{number}"
            return {
                "runId": number,
                "displayId": f"SI-{number}",
                "url": url,
                "resumed": resumed,
            }, 200
        if self.path == "/api/runs/resume":
            return {"error": "Run not found"}, 404
        if self.path == "/files":
            host, number = self.headers["Host"], self.headers["X-Run-Id"]
            urls = [
                {file["fileName"]: f"http://{host}/upload/{number}/{file['fileName']}"}
                for file in body["files"]
            ]
            return {"files": urls}, 200
        if self.path == "/api/runs/status/update":
            runs[int(body["runId"])]["statuses"].append(body["status"])
            return {}, 200
        if self.path == "/api/runs/trigger":
            return {"status": "CANCELLED" if self.server.fault == "cancel" else "RUNNING"}, 200
        return {}, 200 if self.path == "/api/runs/logName/add" else 404


def series(run: dict, key: str) -> list[int]:
    """Steps for which a run has a value of this metric."""
    return sorted(point["step"] for point in run["metrics"] if key in point["data"])


def terminal(run: dict) -> list[str]:
    return [status for status in run["statuses"] if status in TERMINAL]


def refuse(constant: str):
    raise ValueError(f"{constant} is not JSON")
