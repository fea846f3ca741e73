"""A server on loopback that speaks the part of the Kubernetes API that kubectl needs to read runs."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

# Group and version -> kinds
APIS = {
    "v1": {"configmaps": "ConfigMap", "pods": "Pod", "events": "Event"},
    "batch/v1": {"jobs": "Job"},
    "apps/v1": {"statefulsets": "StatefulSet", "daemonsets": "DaemonSet"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
    "kueue.x-k8s.io/v1beta1": {"workloads": "Workload"},
}


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: ADDRESS}}]
users: [{name: u, user: {token: t0ken}}]
contexts: [{name: here, context: {cluster: c, user: u, namespace: ns}}]
"""


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
                owner.requests.append((self.command, url.path))
                owner.before_answer(url.path)
                status, answer = owner.answer(url.path, dict(parse_qsl(url.query)))
                body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
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
        self.kubeconfig.write_text(KUBECONFIG.replace("ADDRESS", address))

    def __enter__(self) -> ApiServer:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, dict | str]:
        group, (parent, kind) = (
            path.removeprefix("/apis/").removeprefix("/api/"),
            path.split("/")[-2:],
        )
        if path in ("/api", "/apis") or group in APIS:
            return 200, self._discovery(path, group)
        if kind in self.forbidden:
            status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
            return 403, {"apiVersion": "v1", **status, "message": f"{kind} is forbidden"}
        if kind == "log":
            return self._log(parent, query)
        if parent == "pods":
            pod = next(each for each in self.objects["pods"] if each["metadata"]["name"] == kind)
            return 200, {"apiVersion": "v1", **pod}
        version = next(
            (
                version
                for version, kinds in APIS.items()
                if kind in kinds and kind not in self.absent
            ),
            None,
        )
        if not version:
            return 404, "404 page not found"
        about = {"apiVersion": version, "kind": APIS[version][kind]}
        objects = self.objects[kind] + (self.objects["children"] if kind == "jobs" else [])
        objects = [] if "/namespaces/" in path and "/namespaces/ns/" not in path else objects
        items = [
            {**each, **about} for each in objects if _selected(each, query.get("labelSelector", ""))
        ]
        start = int(query.get("continue", 0))
        end = start + int(query.get("limit", 10**9))
        page = {
            "metadata": {"continue": str(end) if end < len(items) else ""},
            "items": items[start:end],
        }
        return 200, {**about, "kind": f"{about['kind']}List", **page}

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
            {
                "name": name,
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "verbs": ["get", "list"],
            }
            for name, kind in APIS[group].items()
            if name not in self.absent
        ]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group,
            "resources": resources,
        }

    def _log(self, pod: str, query: dict[str, str]) -> tuple[int, dict | str]:
        if (pod, query["container"]) not in self.logs:
            return 400, {"message": "container is waiting to start"}
        lines = self.logs[pod, query["container"]].splitlines(keepends=True)
        lines = lines[max(0, len(lines) - int(query.get("tailLines", len(lines)))) :]
        if query.get("timestamps") != "true":
            lines = [line.partition(" ")[2] for line in lines]
        return 200, "".join(lines)


def _selected(item: dict, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for name, values, value in re.findall(r"([^\s,=]+) in \(([^)]*)\)|([^,]+)", selector):
        if value:
            name, _, values = value.partition("=")
        if labels.get(name) not in values.split(","):
            return False
    return True
