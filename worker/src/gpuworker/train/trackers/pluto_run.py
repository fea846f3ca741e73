"""Pluto run behind Pluto's own client (pluto-ml), in the sender process."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpuworker.train.trackers.backend import RejectedError
from gpuworker.train.trackers.settings import pluto_key

RESET_S = 3.0  # interval at which records that the uploader has given up on are queued again
UPLOADERS: list[subprocess.Popen] = []
CODES = {"finished": 0, "failed": 1}


class PlutoRun:
    artifacts_last = False

    def __init__(self, config: dict, folder: Path):
        self.config, self.folder = config, folder
        os.environ |= {"PLUTO_API_KEY": pluto_key(os.environ), "PLUTO_DISABLE_TELEMETRY": "1", "PLUTO_DIR": str(folder)}
        self.reset_at = 0.0

    def start(self) -> dict:
        """Find or create the run with this id. The server ensures that it exists only once."""
        import pluto
        from pluto.sync.process import SyncProcessManager

        SyncProcessManager._start_or_attach = start_uploader
        settings = {
            "disable_console": True,  # Kubernetes collects the training's output
            "x_console_fd_capture": False,
            "disable_system_metrics": True,  # all nodes would use the same names; see system.py
            "x_sigterm_status_enabled": False,
            "x_file_stream_timeout_seconds": 10,
            "x_file_stream_retry_max": 1,  # the sender retries without a limit
            "sync_process_retry_max": 3,
            "sync_process_flush_interval": 0.1,
            "sync_process_batch_size": 1000,
            "sync_process_shutdown_timeout": 2.0,  # everything is sent before the shutdown
        }
        try:
            # resume: other ranks and earlier attempts use the same run.
            self.run = pluto.init(
                name=self.config["run_name"],
                config=self.config["params"] or None,
                run_id=self.config["run_id"],
                resume=True,
                settings=settings,
            )
        except RuntimeError as error:  # an answer of the server
            status = getattr(error.__cause__, "status_code", None) or 500
            raise (RejectedError if status < 500 else ConnectionError)(str(error)) from error
        finally:
            shutil.rmtree(self.folder / "python_keyring", ignore_errors=True)  # the client writes the key to disk
        self.store = self.run._sync_manager.store
        url = str(self.run.settings.url_view)
        return {"run": self.run.id, "run_id": self.config["run_id"], "resumed": self.run.resumed, "url": url}

    def send(self, records: list[dict]) -> None:
        import pluto

        for record in records:
            if "artifact" in record:
                path = Path(record["artifact"])
                if path.exists():
                    self.run.log({f"artifacts/{path.name}": pluto.Artifact(str(path), caption=path.name)})
                continue
            # The protocol is JSON, which has no NaN.
            numbers = {key: value for key, value in record["metrics"].items() if math.isfinite(value)}
            if numbers:
                self.run.log(numbers, step=record["step"], timestamp=record["time"])

    def delivered(self) -> bool:
        stats = self.store.get_health_stats()
        waiting = stats["pending"] + stats["in_progress"] + self.store.get_pending_file_count()
        if stats["failed"] and not stats["in_progress"] and time.monotonic() - self.reset_at > RESET_S:
            self.reset_at = time.monotonic()
            self.store.reset_failed_to_pending()
        if stats["failed"]:
            row = self.store.conn.execute("SELECT error_message FROM sync_queue WHERE status = 3 LIMIT 1").fetchone()
            raise ConnectionError(f"Pluto does not accept the metrics: {row[0] if row else 'no reason given'}")
        return waiting == 0

    def end(self, status: str | None) -> None:
        """Set the status of the run, or leave it open."""
        if status is None:
            self.run.close()
            return
        self.run.finish(CODES[status])
        if error := self.run._status_update_error:
            raise ConnectionError(f"the run could not be marked {status}: {error}")

    def abandon(self) -> None:
        """Kill the uploaders, so that none outlives this process."""
        for uploader in UPLOADERS:
            uploader.kill()


def start_uploader(manager) -> None:
    """Start the client's uploader with its settings, which contain the key, on a pipe. Written for pluto-ml 0.0.29.

    The client itself passes them on the command line, which every process on the node can read.
    """
    manager._process = subprocess.Popen(
        [sys.executable, "-m", "gpuworker.train.trackers.pluto_run", str(manager.db_path), str(os.getpid())],
        stdin=subprocess.PIPE,
    )
    manager._process.stdin.write(json.dumps(manager.settings).encode())
    manager._process.stdin.close()
    manager._started = True
    UPLOADERS.append(manager._process)


if __name__ == "__main__":
    from pluto.sync.process import _sync_main

    _sync_main(sys.argv[1], json.load(sys.stdin.buffer), int(sys.argv[2]))
