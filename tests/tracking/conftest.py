"""A real MLflow server, a stand-in for Pluto's, and a proxy with faults. These tests run in the
environment `track`.
"""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import free_port, serving, until
from tests.tracking import pluto_stand_in
from tests.tracking.pluto_stand_in import FaultyHandler, FaultyServer


class Mlflow:
    def __init__(self, port: int):
        from mlflow.tracking import MlflowClient  # of the environment `track`

        self.uri = f"http://127.0.0.1:{port}"

        self.client = MlflowClient(self.uri)

    def runs(self, experiment: str) -> list:
        found = self.client.get_experiment_by_name(experiment)
        return [*self.client.search_runs([found.experiment_id])] if found else []

    def steps(self, run) -> list[int]:
        history = self.client.get_metric_history(run.info.run_id, "loss")
        return sorted(point.step for point in history)


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory) -> Iterator[Mlflow]:
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    server = Mlflow(port)
    command = [Path(sys.executable).with_name("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port),
               "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1",
               "--artifacts-destination", folder / "artifacts", "--allowed-hosts", "*"]  # fmt: skip
    more = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    more["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **more}, stdout=log, stderr=log, start_new_session=True
        )

    def ready():
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{server.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    until(ready, "the server answers", 120)
    yield server
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Proxy(FaultyServer):
    """Forwards to MLflow unless a fault is set."""

    def __init__(self, target: str):
        self.target = target
        super().__init__(Forward)


class Forward(FaultyHandler):
    server: Proxy

    def do_GET(self):
        body = self.body()
        if self.apply_fault():
            return
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            self.server.target + self.path, body or None, headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                self.respond(answer.read(), answer.status)
        except urllib.error.HTTPError as error:
            self.respond(error.read(), error.code)

    do_POST = do_GET
    do_PATCH = do_GET


def served(server: FaultyServer) -> Iterator:
    with serving(server):
        yield server
        server.fault = ""


@pytest.fixture
def proxy(mlflow) -> Iterator[Proxy]:
    yield from served(Proxy(mlflow.uri))


@pytest.fixture
def pluto() -> Iterator[pluto_stand_in.Server]:
    yield from served(pluto_stand_in.Server())
