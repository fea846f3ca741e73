"""Client of the Kubernetes API, with the rights of the page's service account."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10
PER_REQUEST = 100  # a pod or a node has some 10 KB
PROBLEMS = (
    OSError,
    http.client.HTTPException,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)  # of a request, and of an answer that is not as documented


class KubeApi:
    """Reads the files of the account for each request: Kubernetes renews the token."""

    def __init__(self, account: Path = ACCOUNT) -> None:
        self.account = account

    def namespace(self) -> str:
        return (self.account / "namespace").read_text().strip()

    def ask(self, path: str, patch: dict | None = None) -> dict:
        """What is at a path, or what became of it by a strategic merge patch."""
        host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
        host = f"[{host}]" if ":" in host else host
        context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # Python 3.13 also demands extensions that authorities of clusters lack, and that kubectl
        # does not ask for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        token = (self.account / "token").read_text().strip()
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/strategic-merge-patch+json",
        }
        data, method = (json.dumps(patch).encode(), "PATCH") if patch else (None, "GET")
        url = f"https://{host}:{port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def items(self, path: str, **query: str) -> Iterator[dict]:
        """All objects of a list, which comes in parts."""
        query["limit"] = str(PER_REQUEST)
        while True:
            found = self.ask(f"{path}?{urllib.parse.urlencode(query)}")
            yield from found["items"]
            if not (more := found["metadata"].get("continue")):
                return
            query["continue"] = more
