"""kubectl port-forward, which reaches a pod through its kubelet, so that no NetworkPolicy is in the way."""

from __future__ import annotations

import re
import subprocess
import urllib.request

from hack.paths import ToolError


def get(namespace: str, target: str, port: str, path: str, environment: dict[str, str] | None = None) -> str:
    """The body of a page of a pod or Service. Raises ToolError if nothing answers, or with another status than 200."""
    command = ["kubectl", "--namespace", namespace, "port-forward", target, f":{port}"]
    forward = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = forward.stdout.readline()
        if not (found := re.search(r"127\.0\.0\.1:(\d+)", line)):
            raise ToolError(f"{' '.join(command)}: {line}{forward.stderr.read()}")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://127.0.0.1:{found[1]}{path}", timeout=30) as response:
                return response.read().decode()
        except OSError as error:
            raise ToolError(f"{target} does not answer: {error}") from None
    finally:
        forward.kill()
        forward.communicate()
