"""Stand-in for Pluto's server, for tests: it implements the protocol of the client pluto-ml 0.0.29. It is not Pluto.

    python3 pluto_stand_in.py [PORT]

One address serves all four services that the client uses. Everything is kept in memory. GET /stand-in returns it as
JSON. POST /stand-in {"fault": "500"} injects a fault: a status, `hang` (no response), `slow` (0.5 s), `drop` (the
connection is closed), `cancel` (a user has cancelled the run), or "" (no fault). Standard library
only, so it runs in any image with Python.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "stand-in-key"
TERMINAL = ("COMPLETED", "FAILED", "TERMINATED", "CANCELLED")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]):
        self.lock, self.fault = threading.Lock(), ""
        # Run number -> its data, and path -> number of requests.
        self.runs: dict[int, dict] = {}
        self.requests: dict[str, int] = {}
        super().__init__(address, Handler)

    def run_of(self, project: str, external_id: str | None, body: dict) -> tuple[int, bool]:
        """Get or create a run, as the real server does: one run per external id of a project, set to running."""
        for number, run in self.runs.items():
            if external_id and (run["project"], run["externalId"]) == (project, external_id):
                run["config"].update(body)
                run["statuses"].append("RUNNING")
                return number, True
        number = len(self.runs) + 1
        self.runs[number] = {
            "project": project, "externalId": external_id, "config": body, "statuses": ["RUNNING"],
            "created": 1, "joined": 0, "names": [], "metrics": [], "files": {},
        }  # fmt: skip
        return number, False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self.path == "/stand-in":
            with self.server.lock:
                self.respond({"runs": self.server.runs, "requests": self.server.requests})
        else:
            self.respond({"error": "Not found"}, 404)

    def do_PUT(self) -> None:
        """A file, at the address that /files has returned: /upload/RUN/NAME."""
        data = self.body()
        _, _, number, name = self.path.split("/", 3)
        with self.server.lock:
            self.server.runs[int(number)]["files"][name] = len(data)
        self.respond({})

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/stand-in":
            self.server.fault = json.loads(body)["fault"]
            self.respond({})
            return
        with self.server.lock:
            self.server.requests[self.path] = self.server.requests.get(self.path, 0) + 1
        if self.apply_fault():
            return
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.respond({"error": "Unauthorized", "message": "Invalid API key"}, 401)
            return
        with self.server.lock:
            response, code = self.handle_call(body)
        self.respond(response, code)

    def apply_fault(self) -> bool:
        fault = self.server.fault
        if fault == "hang":
            while self.server.fault == "hang":
                time.sleep(0.05)  # until the test ends the fault
            self.close_connection = True
            return True
        if fault == "drop":
            self.close_connection = True
            return True
        if fault == "slow":
            time.sleep(0.5)  # the fault itself
            return False
        if fault.isdigit():
            self.respond({"error": f"stand-in: injected status {fault}"}, int(fault))
        return fault.isdigit()

    def handle_call(self, body: bytes) -> tuple[dict, int]:
        runs = self.server.runs
        if self.path == "/api/slug":
            return {"organization": {"slug": "stand-in"}}, 200
        if self.path == "/ingest/metrics":
            run = runs[int(self.headers["X-Run-Id"])]
            run["metrics"] += [json.loads(line, parse_constant=refuse) for line in body.splitlines() if line]
            return {}, 200
        body = json.loads(body)
        if self.path == "/api/runs/create":
            config = json.loads(body["config"] or "{}")
            number, resumed = self.server.run_of(body["projectName"], body["externalId"], config)
            runs[number]["joined"] += resumed
            url = f"http://{self.headers['Host']}/o/stand-in/{number}"
            return {"runId": number, "displayId": f"SI-{number}", "url": url, "resumed": resumed}, 200
        if self.path == "/api/runs/resume":
            return {"error": "Run not found"}, 404
        if self.path == "/files":
            host, number = self.headers["Host"], self.headers["X-Run-Id"]
            urls = [{file["fileName"]: f"http://{host}/upload/{number}/{file['fileName']}"} for file in body["files"]]
            return {"files": urls}, 200
        run = runs[int(body["runId"])]
        if self.path == "/api/runs/status/update":
            run["statuses"].append(body["status"])
        elif self.path == "/api/runs/logName/add":
            run["names"] += body["logName"]
        elif self.path == "/api/runs/trigger":
            return {"status": "CANCELLED" if self.server.fault == "cancel" else "RUNNING"}, 200
        else:
            return {"error": f"the stand-in does not implement {self.path}"}, 404
        return {}, 200

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def respond(self, data: dict, code: int = 200) -> None:
        text = json.dumps(data).encode()
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # the client has closed the connection

    def log_message(self, *_: object) -> None:
        """No log: the tests read the record."""


def series(run: dict, key: str) -> list[int]:
    """Steps for which a run has a value of this metric."""
    return sorted(point["step"] for point in run["metrics"] if key in point["data"])


def terminal(run: dict) -> list[str]:
    return [status for status in run["statuses"] if status in TERMINAL]


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 3001
    print(f"stand-in for Pluto's server on port {port}", flush=True)
    Server(("", port)).serve_forever()
