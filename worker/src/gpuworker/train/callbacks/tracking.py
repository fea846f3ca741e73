"""Numbers of a run to MLflow or Pluto. No tracker holds, slows or ends a training.

  Trainer(…, callbacks=[*trackers(run_id, params), Durable(), Stop()])

The tracker's client runs in a process of its own (tracker_client.py), which reads records from a
file: clients hold the interpreter while they are imported, wait at exit, and end their process when
a user cancels the run. A run is finished when the training has ended, failed when it ended with an
error, and stays open for the next start when it was stopped (exit code 75) or killed.
"""

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

import torch.distributed as dist
from transformers import TrainerCallback

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

START_S = 60.0  # for a client to be imported: a training may be shorter than that


class Tracking(TrainerCallback):
    """MLflow gets the numbers of rank 0, Pluto those of all ranks. `seconds`: for the rest at
    the end.
    """

    def __init__(self, name: str, run_id: str, params: dict | None = None, seconds: float = 10):
        self.first = {"name": name, "run_id": run_id, "params": params or {}, "seconds": seconds}
        self.process: subprocess.Popen | None = None

    def on_train_begin(self, args, state, control, **_) -> None:
        self.rank = args.process_index
        if self.process or (self.rank and self.first["name"] == "mlflow"):
            return
        descriptor, path = tempfile.mkstemp()  # the client deletes it
        self.records = open(descriptor, "w")  # noqa: SIM115 (closed at the end)
        self.put({**self.first, "rank": self.rank})
        command = [sys.executable, "-m", "gpuworker.train.callbacks.tracker_client", path]
        # The end of this pipe is that of the training, also when it is killed.
        options = {"stdin": subprocess.PIPE, "start_new_session": True}
        self.process, self.started = subprocess.Popen(command, **options), time.monotonic()
        atexit.register(self.on_exit)

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if self.process:
            prefix = f"rank-{self.rank}/" if self.rank else ""
            numbers = {prefix + k: v for k, v in (logs or {}).items() if is_number(v)}
            self.put({"metrics": numbers, "step": state.global_step, "time": time.time()})

    def on_train_end(self, args, state, control, **_) -> None:
        """Rank 0 ends the run after all others have left it: a late one would open it again."""
        if self.rank:
            self.close(None)
        if dist.is_initialized():
            dist.barrier()
        self.close("finished")

    def on_exit(self) -> None:
        # Python sets last_type for an error that ended the program, and not for an exit code.
        self.close("failed" if hasattr(sys, "last_type") and not self.rank else None)

    def put(self, record: dict) -> None:
        """Never waits for the client."""
        with contextlib.suppress(OSError):  # a full disk; tried again with the next record
            self.records.write(json.dumps(record) + "\n")
            self.records.flush()

    def close(self, status: str | None) -> None:
        """Let the client send the rest and set the status; None leaves the run open."""
        process, self.process = self.process, None
        if not process:
            return
        self.put({"end": status})
        process.stdin.close()
        wait = self.first["seconds"] + 1
        if status == "finished":  # the pod is not being stopped
            wait = max(wait, self.started + START_S - time.monotonic())
        try:
            code = process.wait(wait)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(OSError):  # with what it started, so that nothing outlives us
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if code != 0:
            facts = {"tracker": self.first["name"], "state": "unsent", "status": status or "open"}
            log(Tag.TRACK, rank=self.rank, **facts)


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


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
