"""The test of this node before the program starts: accept-node at the level prolog.

It is a process of its own, which has ended before a rank starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuworker.launch.failure_causes import Failure
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log, write_termination_message

PROGRAM = "gpuworker.accept.accept_node"
SOURCES = Path(__file__).parents[2]
PATIENCE_S = 120  # it ends by itself: on GPUs within 15 s, in a rehearsal within 90


def run(mode: str) -> None:
    """Test this node, with the termination message as record. In the mode `gate` raises Failure."""
    begin, folder = time.monotonic(), Path(tempfile.gettempdir(), f"node-test-{os.getuid()}")
    message = folder / "message"
    folder.mkdir(exist_ok=True)
    message.write_text("the test has no result")
    path = f"{SOURCES}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    variables = {**os.environ, "PYTHONPATH": path, "TERMINATION_LOG": str(message)}
    command = [sys.executable, "-m", PROGRAM, "--level=prolog", f"--report-dir={folder}"]
    try:
        code = subprocess.run(command, env=variables, timeout=PATIENCE_S).returncode
    except subprocess.TimeoutExpired:
        code = ExitCode.NODE_UNFIT
    text = message.read_text(encoding="utf-8", errors="replace")
    write_termination_message(text)
    took_s = time.monotonic() - begin
    log(Tag.DDP, phase="node test", mode=mode, exit_code=code, seconds=took_s)
    if mode == "gate" and code:
        cause = "usage" if code == ExitCode.USAGE else "node-test-failed"
        raise Failure(cause, text.partition("\n")[0])
