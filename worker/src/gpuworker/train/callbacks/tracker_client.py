"""Client of a tracker, in a process of its own: records are JSON lines in a file of tracking.py.

It retries for as long as the training runs, and for the first record's `seconds` after its end.
Exit code 0: everything was sent.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TextIO

from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log

TAG = "gpu-charts.run_id"  # finds the run of an earlier start in MLflow
WAIT_S = 2.0  # between two tries


class Client:
    def __init__(self, first: dict, file: TextIO):
        self.first, self.file, self.said, self.deadline = first, file, "", 0.0

    def over(self) -> bool:
        """Whether the training has ended, or was killed; the time for the rest then begins."""
        if not self.deadline and select.select([sys.stdin], [], [], 0)[0]:
            self.deadline = time.monotonic() + self.first["seconds"]
        return self.deadline > 0

    def next(self) -> dict:
        line = ""
        while not line.endswith("\n"):
            over = self.over()  # before the look at the file, which then has everything
            line += self.file.readline()
            if not line.endswith("\n"):
                if over:  # killed, or stopped without an end
                    return {"end": None}
                time.sleep(0.1)
        return json.loads(line)

    def run(self) -> None:
        self.retry(self.start)
        while "end" not in (record := self.next()):
            if record["metrics"]:
                self.retry(lambda record=record: self.send(record))
        self.retry(lambda: self.end(record["end"]))

    def retry(self, action: Callable[[], None]) -> None:
        while True:
            try:
                return action()
            except Exception as error:  # each client has classes of its own
                text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                if text != self.said:
                    self.log(state="retrying", why=text)
                    self.said = text
                if self.over() and time.monotonic() > self.deadline:
                    sys.exit(1)
                time.sleep(WAIT_S)

    def log(self, **facts: object) -> None:
        log(Tag.TRACK, rank=self.first["rank"], tracker=self.first["name"], **facts)


class MLflow(Client):
    def start(self) -> None:
        import mlflow

        # Not mlflow.start_run, which marks any end as FINISHED.
        self.client, run_id = mlflow.MlflowClient(), self.first["run_id"]
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        number = mlflow.set_experiment(name).experiment_id
        found = self.client.search_runs([number], f"tags.`{TAG}` = '{run_id}'")
        made = found or [self.client.create_run(number, tags={TAG: run_id}, run_name=run_id)]
        self.run_id = made[0].info.run_id
        self.client.update_run(self.run_id, status="RUNNING")
        for key, value in self.first["params"].items():
            if key not in made[0].data.params:  # MLflow does not allow a change
                self.client.log_param(self.run_id, key, value)
        self.log(state="started", run=self.run_id, run_id=run_id, resumed=bool(found))

    def send(self, record: dict) -> None:
        from mlflow.entities import Metric

        at, step = int(1000 * record["time"]), record["step"]
        metrics = [Metric(key, value, at, step) for key, value in record["metrics"].items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, status: str | None) -> None:
        if status:
            self.client.set_terminated(self.run_id, status.upper())


class Pluto(Client):
    def start(self) -> None:
        import pluto
        from pluto.sync.process import SyncProcessManager

        SyncProcessManager._start_or_attach = start_uploader
        folder = tempfile.mkdtemp()  # its database must be on a local disk
        os.environ |= {"PLUTO_DIR": folder, "PLUTO_DISABLE_TELEMETRY": "1"}
        settings = {
            "disable_console": True,  # Kubernetes keeps the output
            "x_console_fd_capture": False,
            "disable_system_metrics": True,
            "x_sigterm_status_enabled": False,
            "x_file_stream_timeout_seconds": 5,
            "x_file_stream_retry_max": 1,
            "sync_process_flush_interval": 0.1,
            "sync_process_shutdown_timeout": 0.8 * self.first["seconds"],
        }
        run_id, params = self.first["run_id"], self.first["params"]
        params = params if not self.first["rank"] else None
        try:  # resume: the run of other ranks and of earlier starts
            self.pluto = pluto.init(
                name=run_id, run_id=run_id, resume=True, config=params, settings=settings
            )
        finally:
            shutil.rmtree(os.path.join(folder, "python_keyring"), ignore_errors=True)  # has the key
        self.log(state="started", run=self.pluto.id, run_id=run_id, resumed=self.pluto.resumed)

    def send(self, record: dict) -> None:
        self.pluto.log(record["metrics"], step=record["step"], timestamp=record["time"])

    def end(self, status: str | None) -> None:
        """Pluto's own end does not wait for its uploader, so that a short run would lose all."""
        while self.waiting() and not (self.over() and time.monotonic() > self.deadline - 2):
            time.sleep(0.1)
        lost = self.waiting()
        if status:
            self.pluto.finish({"finished": 0}.get(status, 1))
        else:
            self.pluto.close()
        if lost:
            sys.exit(1)

    def waiting(self) -> int:
        stats = self.pluto._sync_manager.store.get_health_stats()
        return stats["pending"] + stats["in_progress"]


def start_uploader(manager) -> None:
    """Give Pluto's uploader its settings, which have the key, by a pipe. For pluto-ml 0.0.29.

    The client itself passes them on the command line, which every process of the node can read.
    """
    command = "import json, sys; from pluto.sync.process import _sync_main as main; "
    command += "main(sys.argv[1], json.load(sys.stdin), int(sys.argv[2]))"
    arguments = [sys.executable, "-c", command, str(manager.db_path), str(os.getpid())]
    manager._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True)
    manager._process.stdin.write(json.dumps(manager.settings))
    manager._process.stdin.close()
    manager._started = True


def main() -> None:
    escape_output()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the training decides when it ends
    bounds = {"TIMEOUT": "5", "MAX_RETRIES": "0"}
    for name, value in bounds.items():
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    file = open(sys.argv[1])  # noqa: SIM115 (read to the end of this process)
    os.unlink(sys.argv[1])
    first = json.loads(file.readline())
    {"mlflow": MLflow, "pluto": Pluto}[first["name"]](first, file).run()
    sys.stdout.flush()
    os._exit(0)  # what a client still has to do at exit is not waited for


if __name__ == "__main__":
    main()
