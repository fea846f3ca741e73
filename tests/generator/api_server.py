"""A server on loopback that speaks the part of the Kubernetes API that kubectl needs to read runs."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

# Group and version -> kinds
APIS = {
    "v1": {"configmaps": "ConfigMap", "pods": "Pod", "events": "Event"},
    "batch/v1": {"jobs": "Job"},
    "apps/v1": {"statefulsets": "StatefulSet", "daemonsets": "DaemonSet"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
    "kueue.x-k8s.io/v1beta1": {"workloads": "Workload"},
}
JOBSET = "jobset.sigs.k8s.io/jobset-name"


class ApiServer:
    """Serves lists of objects in the namespace `ns`; `logs` has lines by pod and container."""

    def __init__(self, objects: dict[str, list[dict]], folder: Path):
        self.objects, self.requests = objects, []
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
        group, kind = path.removeprefix("/apis/").removeprefix("/api/"), path.rpartition("/")[2]
        if path in ("/api", "/apis") or group in APIS:
            return 200, json.dumps(self._discovery(path, group)).encode()
        if kind in self.forbidden:
            status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
            return 403, json.dumps({"apiVersion": "v1", **status, "message": f"{kind} is forbidden"}).encode()
        parts = path.split("/")
        if kind == "log":
            return self._log(parts[-2], query)
        if parts[-2] == "pods":
            pod = next(each for each in self.objects["pods"] if each["metadata"]["name"] == kind)
            return 200, json.dumps({"apiVersion": "v1", **pod}).encode()
        version = next((version for version, kinds in APIS.items() if kind in kinds and kind not in self.absent), None)
        if not version:
            return 404, b"404 page not found"
        objects = self.objects[kind] + (self.objects["children"] if kind == "jobs" else [])
        if "/namespaces/" in path and "/namespaces/ns/" not in path:
            objects = []
        items = [each for each in objects if _selected(each, query.get("labelSelector", ""))]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 10**9)
        more = str(start + limit) if start + limit < len(items) else ""
        about = {"apiVersion": version, "kind": APIS[version][kind]}
        page = {"apiVersion": version, "kind": f"{APIS[version][kind]}List", "metadata": {"continue": more}}
        return 200, json.dumps(page | {"items": [{**each, **about} for each in items[start : start + limit]]}).encode()

    def _discovery(self, path: str, group: str) -> dict:
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = []
            for version in (each for each in APIS if "/" in each):
                preferred = {"groupVersion": version, "version": version.partition("/")[2]}
                about = {"versions": [preferred], "preferredVersion": preferred}
                groups.append({"name": version.partition("/")[0], **about})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        resources = [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
            for name, kind in APIS[group].items()
            if name not in self.absent
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}

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
