"""Process of one tracker's client, as the training process controls it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuworker.train.trackers import spool
from gpuworker.train.trackers.redact import redact

# With these, a client assumes that it is one rank of many, and does not wait for its uploads.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID")


class TrackerError(RuntimeError):
    """A tracker failed, and --tracker-required was given. Never raised without it."""

    def __init__(self, message: str):
        super().__init__(redact(message))


class SenderProcess:
    """A sender (sender.py) with the folder of its records."""

    def __init__(self, config: dict):
        self.name, self.config, self.exit_logged = config["tracker"], config, False
        # On local disk: PLUTO_DIR if it is set, else $TMPDIR.
        parent = os.environ.get("PLUTO_DIR") if self.name == "pluto" else None
        if parent:
            os.makedirs(parent, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-rank-{config['rank']}-", dir=parent or None))
        (self.folder / spool.CONFIG).write_text(json.dumps(config))
        self.spool = spool.SpoolWriter(self.folder)
        environment = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
        root = str(Path(__file__).parents[3])
        environment["PYTHONSAFEPATH"] = "1"  # a folder `mlflow` next to the program is not the client
        environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuworker.train.trackers.sender", str(self.folder)],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # signals to the training's process group must not reach it
        )

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def reason(self, default: str = "no reason given") -> str:
        return spool.load_state(self.folder).get("why") or default

    def wait_started(self, end: float) -> None:
        """Wait until the run exists. Raises TrackerError at `end`, or if the process exits."""
        while not spool.load_state(self.folder).get("started"):
            if (exited := self.has_exited()) or time.monotonic() > end:
                why = self.reason("its process exited" if exited else "no response within --tracker-timeout")
                raise TrackerError(f"{self.name} is required and could not be reached: {why}")
            time.sleep(0.05)

    def send_end(self, status: str, wait_s: float) -> None:
        self.spool.write({"end": status})
        self.spool.close()
        with contextlib.suppress(OSError):  # the process has exited
            self.process.stdin.write(f"{wait_s}\n".encode())
            self.process.stdin.close()

    def discard(self) -> None:
        """Kill the process and remove its folder."""
        self.spool.close()
        self.end_process(0.0)
        self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_process(self, wait_s: float) -> int:
        """Wait for the process, kill it and those that it has started, and return its exit code."""
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the client's uploader, if it hangs
        return code

    def close(self, wait_s: float) -> str:
        """Wait for the process and return its problem, or an empty string. Saves the records of a failed sender."""
        code = self.end_process(wait_s)
        problem = ""
        if code == 1:
            problem = f"not everything was sent: {self.reason()}"
        elif code:
            offset = spool.load_state(self.folder).get("delivered", 0)
            count, file = spool.save_unsent(self.folder, offset, Path(self.config["unsent_folder"]))
            problem = f"its process exited with {code}; {count} records are kept in {file}"
            if file.parent == self.folder:
                return problem
        if self.spool.lost:
            problem = f"{problem}; {self.spool.lost} records were lost: {self.spool.why}".lstrip("; ")
        if not spool.load_state(self.folder).get("kept_here"):
            shutil.rmtree(self.folder, ignore_errors=True)
        return problem
