"""Stand-in of the Kubernetes API over TLS: lists pods and nodes, and patches nodes, to the owner of
a token.
"""

import copy
import json
import ssl
import subprocess
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuworker.fleet import kubernetes, node_actions
from gpuworker.fleet.kubernetes import KubeApi
from tests.helpers.processes import serving

PODS, NODES = "/api/v1/namespaces/team/pods", "/api/v1/nodes"
MERGED_BY = {
    "conditions": "type"
}  # lists of a node that a strategic merge patch merges; it replaces the others


class Api(BaseHTTPRequestHandler):
    """Lists objects, two in an answer."""

    protocol_version = "HTTP/1.1"
    pods: list[dict]
    nodes: dict[str, dict]
    queries: list[dict]
    patched: list[str]

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.queries.append({"path": url.path, **query})
        items = {PODS: self.pods, NODES: list(self.nodes.values())}.get(url.path)
        start = int(query.get("continue", 0))
        more = {"continue": str(start + 2)} if items and start + 2 < len(items) else {}
        self.answer(
            404 if items is None else 200,
            {"items": (items or [])[start : start + 2], "metadata": more},
        )

    def do_PATCH(self):
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, _, part = self.path.removeprefix(f"{NODES}/").partition("/")
        node = self.nodes[name]
        if patch["metadata"].get("resourceVersion") not in (
            None,
            node["metadata"]["resourceVersion"],
        ):
            return self.answer(409, {"reason": "Conflict"})
        self.nodes[name] = patched(node, patch, part)
        self.patched.append(name)
        return self.answer(200, self.nodes[name])

    def answer(self, status: int, value: dict):
        allowed = self.headers["Authorization"] == "Bearer secret"
        body = json.dumps(value).encode()
        self.send_response(status if allowed else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def patched(node: dict, patch: dict, part: str = "") -> dict:
    """The node after a strategic merge patch: its status only by the part "status", its spec only
    without.
    """
    result = copy.deepcopy(node)
    for key, value in patch.items():
        if key == "metadata" or (key == "status") == (part == "status"):
            merge(result[key], value)
    version = int(node["metadata"]["resourceVersion"])
    result["metadata"]["resourceVersion"] = str(version + (result != node))
    return result


def merge(base: dict, over: dict):
    for key, value in over.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict):
            merge(base.setdefault(key, {}), value)
        elif key in MERGED_BY:
            names = {each[MERGED_BY[key]] for each in value}
            base[key] = [
                each for each in base.get(key, []) if each[MERGED_BY[key]] not in names
            ] + value
        else:
            base[key] = value


def node_object(name: str, boot: str = "boot-1") -> dict:
    """A node with what others wrote on it."""
    return {
        "metadata": {
            "name": name, "resourceVersion": "1", "labels": {"rack": "r1"}, "annotations": {"owner": "team"},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {"nodeInfo": {"bootID": boot}, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


@pytest.fixture
def api(tmp_path, monkeypatch) -> Iterator[type[Api]]:
    """The API server, without pauses between questions to it."""
    account = account_of(tmp_path)
    key, certificate = tmp_path / "key", account / "ca.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=api -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    handler = type("Handler", (Api,), {"pods": [], "nodes": {}, "queries": [], "patched": []})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        for module in (kubernetes, node_actions):
            monkeypatch.setattr(module, "PERIOD_S", 0)
        yield handler


def account_of(folder: Path) -> Path:
    """The files of the service account."""
    account = folder / "account"
    account.mkdir(exist_ok=True)
    (account / "namespace").write_text("team")
    (account / "token").write_text("secret\n")
    return account


def client(folder: Path) -> KubeApi:
    return KubeApi(account_of(folder))
