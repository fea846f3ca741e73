"""Wait for etcd and check its v2 API: torchrun fails at the first connection that is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pkgutil
import time
from pathlib import Path

from gpuworker.launch.config import LaunchConfig
from gpuworker.launch.failure_causes import Verdict


def install_client(folder: Path) -> None:
    """Write the modules that torchrun imports for etcd and that the image lacks."""
    if not importlib.util.find_spec("etcd"):
        folder.mkdir()
        (folder / "etcd.py").write_bytes(pkgutil.get_data("gpuworker.launch", "etcd_v2_client.py"))
    if not importlib.util.find_spec("urllib3"):
        (folder / "urllib3").mkdir(parents=True)
        (folder / "urllib3" / "__init__.py").touch()
        (folder / "urllib3" / "exceptions.py").write_text("class TimeoutError(Exception):\n    pass\n")


async def get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = (await reader.read(1 << 20)).partition(b"\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.close()


async def wait(config: LaunchConfig, deadline: float) -> str:
    """etcd's version. Raises the verdicts etcd-unreachable and etcd-without-v2."""
    host, _, port = config.etcd.rpartition(":")
    error = "no answer"
    while time.monotonic() < deadline:
        try:
            status, body = await asyncio.wait_for(get(host, int(port), "/version"), 3)
            version = json.loads(body)["etcdserver"] if status == 200 else "?"
            status, _ = await asyncio.wait_for(get(host, int(port), "/v2/keys/"), 3)
            if status == 404:
                raise Verdict("etcd-without-v2", f"etcd {version} at {config.etcd} answers 404 to /v2/keys", "etcd")
            if status == 200:
                return version
            error = f"status {status}"
        except (OSError, asyncio.TimeoutError) as problem:
            error = str(problem) or "no answer"
        except (ValueError, IndexError, KeyError, TypeError, RecursionError):
            error = "the reply is not etcd's"
        await asyncio.sleep(min(0.5, max(0, deadline - time.monotonic())))
    reason = f"etcd at {config.etcd}, for {config.timeouts['join-timeout']} s: {error}"
    raise Verdict("etcd-unreachable", reason, "etcd")
