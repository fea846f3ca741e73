"""torchrun gives up at once when etcd is not there yet, so wait for it, and see that it speaks the v2 API."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pkgutil
import time
from pathlib import Path

from gpuworker.launch.config import Plan
from gpuworker.launch.failure_causes import Verdict


def bring_client(folder: Path) -> None:
    """What torchrun imports for etcd and the image lacks."""
    if not importlib.util.find_spec("etcd"):
        folder.mkdir()
        (folder / "etcd.py").write_bytes(pkgutil.get_data("gpuworker.launch", "etcd_v2.py"))
    if not importlib.util.find_spec("urllib3"):
        (folder / "urllib3").mkdir(parents=True)
        (folder / "urllib3" / "__init__.py").touch()
        (folder / "urllib3" / "exceptions.py").write_text("class TimeoutError(Exception):\n    pass\n")


async def ask(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = (await reader.read(1 << 20)).partition(b"\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.close()


async def wait(plan: Plan, deadline: float) -> str:
    """Its version."""
    host, _, port = plan.etcd.rpartition(":")
    error = "no answer"
    while time.monotonic() < deadline:
        try:
            status, body = await asyncio.wait_for(ask(host, int(port), "/version"), 3)
            version = json.loads(body)["etcdserver"] if status == 200 else "?"
            status, _ = await asyncio.wait_for(ask(host, int(port), "/v2/keys/"), 3)
            if status == 404:
                raise Verdict("etcd-no-v2", f"etcd {version} at {plan.etcd} answers 404 to /v2/keys", "etcd")
            if status == 200:
                return version
            error = f"status {status}"
        except (OSError, asyncio.TimeoutError) as problem:
            error = str(problem) or "no answer"
        except (ValueError, IndexError, KeyError):
            error = "what answers is no etcd"
        await asyncio.sleep(min(0.5, max(0, deadline - time.monotonic())))
    raise Verdict("etcd-absent", f"etcd at {plan.etcd}, for {plan.seconds['deadline']} s: {error}", "etcd")
