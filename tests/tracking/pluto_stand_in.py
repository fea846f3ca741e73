"""A stand-in for Pluto's server, for tests: it speaks the protocol of the client pluto-ml 0.0.29, and is not Pluto.

    python3 pluto_stand_in.py [PORT]

One address for all four services that the client knows. It keeps everything in memory and shows it: GET /stand-in is
the record as JSON; POST /stand-in {"fault": "500"} makes it misbehave: a status, `hang` (no answer), `slow` (0.5 s),
`drop` (the connection is closed), `cancel` (somebody has cancelled the run), or "" (works again). Standard library
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
        # Run number -> what is known of it; and every request by its path.
        self.runs: dict[int, dict] = {}
        self.requests: dict[str, int] = {}
        super().__init__(address, Handler)

    def run_of(self, project: str, external_id: str | None, asked: dict) -> tuple[int, bool]:
        """Get or create, as the real server does: one run for an external id of a project; it runs again."""
        for number, run in self.runs.items():
            if external_id and (run["project"], run["externalId"]) == (project, external_id):
                run["config"].update(asked)
                run["statuses"].append("RUNNING")
                return number, True
        number = len(self.runs) + 1
        self.runs[number] = {
            "project": project, "externalId": external_id, "config": asked, "statuses": ["RUNNING"],
            "created": 1, "joined": 0, "names": [], "metrics": [], "files": {},
        }  # fmt: skip
        return number, False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self.path == "/stand-in":
            with self.server.lock:
                self.answer({"runs": self.server.runs, "requests": self.server.requests})
        else:
            self.answer({"error": "Not found"}, 404)

    def do_PUT(self) -> None:
        """A file, at the address that /files has given out: /upload/RUN/NAME."""
        data = self.body()
        _, _, number, name = self.path.split("/", 3)
        with self.server.lock:
            self.server.runs[int(number)]["files"][name] = len(data)
        self.answer({})

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/stand-in":
            self.server.fault = json.loads(body)["fault"]
            self.answer({})
            return
        with self.server.lock:
            self.server.requests[self.path] = self.server.requests.get(self.path, 0) + 1
        if self.misbehaves():
            return
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer({"error": "Unauthorized", "message": "Invalid API key"}, 401)
            return
        with self.server.lock:
            answer, code = self.handle_call(body)
        self.answer(answer, code)

    def misbehaves(self) -> bool:
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
            self.answer({"error": f"stand-in was told to answer {fault}"}, int(fault))
        return fault.isdigit()

    def handle_call(self, body: bytes) -> tuple[dict, int]:
        runs = self.server.runs
        if self.path == "/api/slug":
            return {"organization": {"slug": "stand-in"}}, 200
        if self.path == "/ingest/metrics":
            run = runs[int(self.headers["X-Run-Id"])]
            run["metrics"] += [json.loads(line, parse_constant=refuse) for line in body.splitlines() if line]
            return {}, 200
        asked = json.loads(body)
        if self.path == "/api/runs/create":
            config = json.loads(asked["config"] or "{}")
            number, resumed = self.server.run_of(asked["projectName"], asked["externalId"], config)
            runs[number]["joined"] += resumed
            url = f"http://{self.headers['Host']}/o/stand-in/{number}"
            return {"runId": number, "displayId": f"SI-{number}", "url": url, "resumed": resumed}, 200
        if self.path == "/api/runs/resume":
            return {"error": "Run not found"}, 404
        if self.path == "/files":
            host, number = self.headers["Host"], self.headers["X-Run-Id"]
            urls = [{file["fileName"]: f"http://{host}/upload/{number}/{file['fileName']}"} for file in asked["files"]]
            return {"files": urls}, 200
        run = runs[int(asked["runId"])]
        if self.path == "/api/runs/status/update":
            run["statuses"].append(asked["status"])
        elif self.path == "/api/runs/logName/add":
            run["names"] += asked["logName"]
        elif self.path == "/api/runs/trigger":
            return {"status": "CANCELLED" if self.server.fault == "cancel" else "RUNNING"}, 200
        else:
            return {"error": f"the stand-in does not know {self.path}"}, 404
        return {}, 200

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, data: dict, code: int = 200) -> None:
        text = json.dumps(data).encode()
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # the client has gone

    def log_message(self, *_: object) -> None:
        """Quiet: what matters is in the record."""


def series(run: dict, key: str) -> list[int]:
    """The steps at which a run has a value of this metric."""
    return sorted(point["step"] for point in run["metrics"] if key in point["data"])


def terminal(run: dict) -> list[str]:
    return [status for status in run["statuses"] if status in TERMINAL]


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 3001
    print(f"stand-in for Pluto's server on port {port}", flush=True)
    Server(("", port)).serve_forever()
