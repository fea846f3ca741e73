"""A Pluto run through Pluto's own client (pluto-ml), in the sender process."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpuworker.train.trackers.backend import Refused
from gpuworker.train.trackers.settings import pluto_key, without_password

RESET_S = 3.0  # how often records that the uploader has given up on are given to it again
UPLOADERS: list[subprocess.Popen] = []
CODES = {"finished": 0, "failed": 1}


class PlutoRun:
    def __init__(self, plan: dict, folder: Path):
        self.plan, self.folder = plan, folder
        os.environ |= {"PLUTO_API_KEY": pluto_key(os.environ), "PLUTO_DISABLE_TELEMETRY": "1", "PLUTO_DIR": str(folder)}
        self.reset_at = 0.0

    def start(self) -> dict:
        """Get the run of this id, or create it: the server sees to it that there is one only."""
        import pluto
        from pluto.sync.process import SyncProcessManager

        SyncProcessManager._start_or_attach = start_uploader
        settings = {
            "disable_console": True,  # the training's output is Kubernetes'
            "x_console_fd_capture": False,
            "disable_system_metrics": True,  # they would be under the same names on all nodes; system.py has its own
            "x_sigterm_status_enabled": False,
            "x_file_stream_timeout_seconds": 10,
            "x_file_stream_retry_max": 1,  # the sender tries for as long as it takes
            "sync_process_retry_max": 3,
            "sync_process_flush_interval": 0.1,
            "sync_process_batch_size": 1000,
            "sync_process_shutdown_timeout": 2.0,  # all is sent before it is asked to end
        }
        try:
            # resume: other ranks and earlier attempts have the same run.
            self.run = pluto.init(
                name=self.plan["run_name"],
                config=self.plan["params"] or None,
                run_id=self.plan["run_id"],
                resume=True,
                settings=settings,
            )
        except RuntimeError as error:  # the server has answered
            status = getattr(error.__cause__, "status_code", None) or 500
            raise (Refused if status < 500 else ConnectionError)(str(error)) from error
        finally:
            shutil.rmtree(self.folder / "python_keyring", ignore_errors=True)  # the client writes the key to disk
        self.store = self.run._sync_manager.store
        view = without_password(str(self.run.settings.url_view))
        return {"run": self.run.id, "run_id": self.plan["run_id"], "resumed": self.run.resumed, "url": view}

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
            raise ConnectionError(f"Pluto does not take the metrics: {row[0] if row else 'no reason given'}")
        return waiting == 0

    def end(self, status: str | None) -> None:
        """Give the run its status, or leave it open."""
        if status is None:
            self.run.close()
            return
        self.run.finish(CODES[status])
        if error := self.run._status_update_error:
            raise ConnectionError(f"the run could not be marked {status}: {error}")

    def abandon(self) -> None:
        """Nothing goes on after the end of this process."""
        for uploader in UPLOADERS:
            uploader.kill()


def start_uploader(manager) -> None:
    """Start the client's uploader as the client does, but tell it the key on a pipe: its way is the command line,
    which everybody on the node can read. Written for pluto-ml 0.0.29."""
    manager._process = subprocess.Popen(
        [sys.executable, "-m", "gpuworker.train.trackers.pluto_run", str(manager.db_path), str(os.getpid())],
        stdin=subprocess.PIPE,
        text=True,
    )
    manager._process.stdin.write(json.dumps(manager.settings))
    manager._process.stdin.close()
    manager._started = True
    UPLOADERS.append(manager._process)


if __name__ == "__main__":
    from pluto.sync.process import _sync_main

    _sync_main(sys.argv[1], json.load(sys.stdin), int(sys.argv[2]))
