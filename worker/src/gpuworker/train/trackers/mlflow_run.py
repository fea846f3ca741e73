"""MLflow run behind MLflow's own client, in the sender process.

It does not use mlflow.start_run, which would let every rank end the run.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from gpuworker.train.trackers.backend import RejectedError

TAG = "gpu-charts.run_id"  # finds the run of an earlier attempt, and of the other ranks
METRICS_LIMIT, PARAMS_LIMIT, VALUE_LIMIT = 1000, 100, 6000  # of the server: items per call, characters per value
STATUS = {"finished": "FINISHED", "failed": "FAILED"}

last_response = {"status": 0}  # 0: the last request had no response


def observe_responses() -> None:
    """Keep the status of each HTTP response, which the client's exceptions contain as text at most."""
    import requests

    send = requests.Session.send
    if send.__name__ == "observed":
        return

    def observed(*arguments, **options):
        last_response["status"] = 0
        response = send(*arguments, **options)
        last_response["status"] = response.status_code
        return response

    requests.Session.send = observed


class MlflowRun:
    artifacts_last = True

    def __init__(self, config: dict):
        self.config = config
        for name, value in {
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():
            os.environ.setdefault(name, value)
        self.uri = os.environ["MLFLOW_TRACKING_URI"]
        self.experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"

    def start(self) -> dict:
        """Find the run by its tag. Rank 0 creates it if it does not exist; the other ranks retry until it exists."""
        try:
            import mlflow

            observe_responses()
            self.client = mlflow.MlflowClient(self.uri)
            run, resumed = self.find(), True
            if run is None and self.config["rank"]:
                raise ConnectionError("rank 0 has not created the run yet")
            if run is None:
                run, resumed = self.create(), False
            self.run_id = run.info.run_id
            if self.config["rank"] == 0:
                self.update(run)
        except Exception as error:
            if isinstance(error, ImportError):
                raise RejectedError(f"{error}: this URI needs the full package mlflow") from error
            raise self.explain(error) from error
        url = f"{self.uri}/#/experiments/{run.info.experiment_id}/runs/{self.run_id}"
        return {"run": self.run_id, "run_id": self.config["run_id"], "resumed": resumed, "url": url}

    def find(self):
        """The oldest run with our tag, or None."""
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return None
        found = self.client.search_runs(
            [experiment.experiment_id], f"tags.`{TAG}` = '{self.config['run_id']}'", order_by=["attributes.start_time"]
        )
        return found[0] if found else None

    def create(self):
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        return self.client.create_run(number, tags={TAG: self.config["run_id"]}, run_name=self.config["run_name"])

    def update(self, run) -> None:
        """Mark the run as running, and add new parameters. MLflow does not allow changes of existing ones."""
        from mlflow.entities import Param

        if run.info.status != "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
        new = [
            Param(key, str(value)[:VALUE_LIMIT])
            for key, value in self.config["params"].items()
            if key not in run.data.params
        ]
        for first in range(0, len(new), PARAMS_LIMIT):
            self.client.log_batch(self.run_id, params=new[first : first + PARAMS_LIMIT])

    def send(self, records: list[dict]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(key, value, int(record["time"] * 1000), record["step"])
            for record in records
            for key, value in record.get("metrics", {}).items()
        ]
        try:
            for first in range(0, len(metrics), METRICS_LIMIT):
                self.client.log_batch(self.run_id, metrics=metrics[first : first + METRICS_LIMIT])
            for record in records:
                if "artifact" in record and Path(record["artifact"]).exists():
                    self.log_artifact(record["artifact"])
        except Exception as error:
            raise self.explain(error) from error

    def log_artifact(self, path: str) -> None:
        try:
            self.client.log_artifact(self.run_id, path)
        except ImportError as error:
            raise RejectedError(
                f"the store of the artifacts needs the Python package {error.name}, which is not in this image: "
                f"pip install {error.name}, or start the server with --serve-artifacts"
            ) from error

    def delivered(self) -> bool:
        return True  # send returns once the server has the records

    def end(self, status: str | None) -> None:
        if status is not None:
            self.client.set_terminated(self.run_id, STATUS[status])

    def abandon(self) -> None:
        """MLflow's client starts no processes."""

    def explain(self, error: Exception) -> Exception:
        """The same error with what to do about it, where that is known."""
        text = str(error)
        if "Invalid Host header" in text:
            host = urlsplit(self.uri).netloc.rpartition("@")[2]
            return RejectedError(
                f"the MLflow server does not accept the host name {host}: start it with --allowed-hosts '{host}' "
                "(MLFLOW_SERVER_ALLOWED_HOSTS)"
            )
        if isinstance(error, RejectedError):
            return error
        status = (
            last_response["status"]
            if last_response["status"] >= 400
            else getattr(error, "get_http_status_code", lambda: 500)()
        )
        if status in (401, 403):
            return RejectedError(
                f"the MLflow server denied access ({status}): {text}; "
                "check MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN"
            )
        passing = status in (408, 429) or status >= 500  # the next attempt may succeed
        return error if passing else RejectedError(text)
