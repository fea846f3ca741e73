"""Numbers of a run to MLflow or Pluto. No tracker holds, slows or ends a training.

  Trainer(…, callbacks=[*trackers(run_id, params), Durable(), Stop()])

The tracker's client runs in a process of its own (tracker_client.py), which gets records by a pipe:
clients hold the interpreter while they are imported, wait at exit, and end their process when a user
cancels the run. A run is finished when the training has ended, failed when it ended with an error,
and stays open for the next start when it was stopped (exit code 75) or killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from urllib.parse import urlsplit

import torch.distributed as dist
from transformers import TrainerCallback

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

KEPT_BYTES = 1 << 20  # of records that the pipe cannot take


def trackers(run_id: str, params: dict | None = None) -> list[Tracking]:
    """Those that the environment names. Raises ValueError for an address with a password in it."""
    found = []
    if address := os.environ.get("MLFLOW_TRACKING_URI"):
        if urlsplit(address).password:
            raise ValueError(
                "MLFLOW_TRACKING_URI has a password, which logs would show; use "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        found.append(Tracking("mlflow", run_id, params))
    if os.environ.get("PLUTO_API_KEY"):
        found.append(Tracking("pluto", os.environ.get("PLUTO_RUN_ID") or run_id, params))
    return found


class Tracking(TrainerCallback):
    """MLflow gets the numbers of rank 0, Pluto those of all ranks. `seconds`: for the rest at the end."""

    def __init__(self, name: str, run_id: str, params: dict | None = None, seconds: float = 10):
        self.first = {"name": name, "run_id": run_id, "params": params or {}, "seconds": seconds}
        self.process: subprocess.Popen | None = None
        self.rest, self.lost = b"", 0

    def on_train_begin(self, args, state, control, **_) -> None:
        self.rank = args.process_index
        if self.process or (self.rank and self.first["name"] == "mlflow"):
            return
        command = [sys.executable, "-m", "gpuworker.train.callbacks.tracker_client"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        os.set_blocking(self.process.stdin.fileno(), False)
        self.put({**self.first, "rank": self.rank})
        atexit.register(self.on_exit)

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if self.process:
            prefix = f"rank-{self.rank}/" if self.rank else ""
            numbers = {prefix + k: v for k, v in (logs or {}).items() if is_number(v)}
            self.put({"metrics": numbers, "step": state.global_step, "time": time.time()})

    def on_train_end(self, args, state, control, **_) -> None:
        """Rank 0 ends the run after all others have left it: a late one would open it again."""
        if self.process and self.rank:
            self.close(None)
        if dist.is_initialized():
            dist.barrier()
        if self.process and not self.rank:
            self.close("finished")

    def on_exit(self) -> None:
        # Python sets last_type for an error that ended the program, and not for an exit code.
        self.close("failed" if hasattr(sys, "last_type") and not self.rank else None)

    def put(self, record: dict) -> None:
        """Never waits. What the pipe cannot take is kept up to KEPT_BYTES, then lost and counted."""
        line = json.dumps(record).encode() + b"\n"
        if len(self.rest) + len(line) > KEPT_BYTES:
            self.lost += 1
        else:
            self.rest += line
        self.flush()

    def flush(self) -> None:
        try:
            self.rest = self.rest[os.write(self.process.stdin.fileno(), self.rest) :]
        except BlockingIOError:
            pass
        except OSError:  # the client has ended, such as when a user cancels the run
            self.lost, self.rest = self.lost + self.rest.count(b"\n"), b""

    def close(self, status: str | None) -> None:
        """Let the client send the rest and set the status; None leaves the run open."""
        if self.process.stdin.closed:
            return
        until = time.monotonic() + self.first["seconds"]
        self.put({"end": status})
        while self.rest and time.monotonic() < until:
            time.sleep(0.05)
            self.flush()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(max(0.1, until + 1 - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(OSError):  # with what it started, so that nothing outlives us
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if code or code is None or self.lost:
            facts = {"tracker": self.first["name"], "state": "unsent", "lost": self.lost}
            log(Tag.TRACK, rank=self.rank, **facts, status=status)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
