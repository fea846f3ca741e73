"""A server on loopback that speaks the part of the Kubernetes API that jobgen reads."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from jobgen.observe.snapshot import Snapshot

KINDS = ("configmaps", "pods", "jobsets", "jobs", "statefulsets", "events", "workloads")


class ApiServer:
    """Serves the objects of a snapshot in the namespace `ns`; `logs` has lines by pod and container."""

    def __init__(self, snapshot: Snapshot, folder: Path):
        self.snapshot, self.requests = snapshot, []
        self.logs: dict[tuple[str, str], str] = {}
        self.forbidden: set[str] = set()
        self.absent: set[str] = set()
        self.before_answer = lambda path: None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                url = urlsplit(self.path)
                query = {key: each[0] for key, each in parse_qs(url.query).items()}
                owner.requests.append((self.command, url.path, self.headers.get("authorization")))
                owner.before_answer(url.path)
                status, body = owner.answer(url.path, query)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.kubeconfig = folder / "kubeconfig"
        address = f"http://127.0.0.1:{self.server.server_port}"
        cluster = {"name": "c", "cluster": {"server": address}}
        user = {"name": "u", "user": {"token": "t0ken"}}
        context = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}
        data = {"current-context": "here", "clusters": [cluster], "users": [user], "contexts": [context]}
        self.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **data}))

    def __enter__(self) -> ApiServer:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        kind = path.rpartition("/")[2]
        if kind in self.forbidden:
            return 403, json.dumps({"kind": "Status", "message": f"{kind} is forbidden"}).encode()
        if kind == "log":
            return self._log(path.split("/")[-2], query)
        if "/namespaces/ns/" not in path or kind not in KINDS or kind in self.absent:
            return 404, b"404 page not found"
        items = [each for each in getattr(self.snapshot, kind) if _selected(each, query.get("labelSelector", ""))]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 10**9)
        more = str(start + limit) if start + limit < len(items) else ""
        # Items of a list have no kind, except for custom resources.
        shown = [{**each, "kind": None} if kind != "jobsets" else each for each in items[start : start + limit]]
        page = {"metadata": {"continue": more}, "items": shown}
        return 200, json.dumps(page).encode()

    def _log(self, pod: str, query: dict[str, str]) -> tuple[int, bytes]:
        if (pod, query["container"]) not in self.logs:
            return 400, b'{"message": "container is waiting to start"}'
        lines = self.logs[pod, query["container"]].splitlines(keepends=True)
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :] if query["tailLines"] != "0" else []
        if query.get("timestamps") != "true":
            lines = [line.partition(" ")[2] for line in lines]
        return 200, "".join(lines).encode()


def _selected(item: dict, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for name, values, value in re.findall(r"([^\s,=]+) in \(([^)]*)\)|([^,]+)", selector):
        if value:
            name, _, values = value.partition("=")
        if labels.get(name) not in values.split(","):
            return False
    return True
