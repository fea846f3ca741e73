"""torchrun under a launcher that was killed: it ends, wherever it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworker.runtime.processes import kill
from tests.helpers.hostile_messages import listens
from tests.helpers.processes import alive, descendants, free_port, until

PRELOAD = Path(__file__).parents[2] / "worker/src/gpuworker/launch/torchrun_preload.py"


def torchrun(tmp_path, nodes: int, port: int) -> subprocess.Popen:
    """torchrun on one of `nodes` nodes, as a launcher starts it, with a program that sleeps."""
    script = tmp_path / "sleeps.py"
    script.write_text("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen([sys.executable, PRELOAD, "READY"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    arguments = [f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=x"]
    arguments += [f"--rdzv-endpoint=127.0.0.1:{port}", str(script)]
    process.stdin.write(json.dumps({"arguments": arguments, "environ": dict(os.environ)}).encode() + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("nodes", [1, 2], ids=["runs", "waits for a node"])
def test_torchrun_ends_with_its_launcher(tmp_path, nodes: int) -> None:
    port = free_port()
    with torchrun(tmp_path, nodes, port) as process:
        try:
            if nodes == 1:
                assert process.stdout.readline() == b"runs\n"
            else:
                until(lambda: listens("127.0.0.1", port), "the rendezvous begins")
            ranks = descendants(process.pid)
            assert process.poll() is None
            process.stdin.close()
            assert process.wait(40) != 0
            until(lambda: not any(map(alive, ranks)), "the ranks end")
        finally:
            kill([process.pid, *descendants(process.pid)], signal.SIGKILL)
