"""An MLflow run through MLflow's own client, in the sender process. It never uses mlflow.start_run, which would let
every rank end the run."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from gpuworker.train.trackers.backend import Refused
from gpuworker.train.trackers.settings import without_password

TAG = "gpu-charts.run_id"  # finds the run of an earlier attempt, and of the other ranks
MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 6000  # what a server takes in one call, and of one value
STATUS = {"finished": "FINISHED", "failed": "FAILED"}


class MlflowRun:
    def __init__(self, plan: dict):
        self.plan = plan
        for name, value in {
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():
            os.environ.setdefault(name, value)
        self.uri = os.environ["MLFLOW_TRACKING_URI"]
        self.experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"

    def start(self) -> dict:
        """Find the run by its tag. Rank 0 creates it if there is none; the others come back until there is one."""
        try:
            import mlflow

            self.client = mlflow.MlflowClient(self.uri)
            run, resumed = self.find(), True
            if run is None and self.plan["rank"]:
                raise ConnectionError("rank 0 has not created the run yet")
            if run is None:
                run, resumed = self.create(), False
            self.run_id = run.info.run_id
            if self.plan["rank"] == 0:
                self.describe(run)
        except Exception as error:
            raise self.explained(error) from error
        where = f"{without_password(self.uri)}/#/experiments/{run.info.experiment_id}/runs/{self.run_id}"
        return {"run": self.run_id, "run_id": self.plan["run_id"], "resumed": resumed, "url": where}

    def find(self):
        """The oldest run with our tag, or None."""
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return None
        found = self.client.search_runs(
            [experiment.experiment_id], f"tags.`{TAG}` = '{self.plan['run_id']}'", order_by=["attributes.start_time"]
        )
        return found[0] if found else None

    def create(self):
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        return self.client.create_run(number, tags={TAG: self.plan["run_id"]}, run_name=self.plan["run_name"])

    def describe(self, run) -> None:
        """An attempt: running again, and with those parameters that it has not; MLflow lets none be changed."""
        from mlflow.entities import Param

        if run.info.status != "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
        new = [
            Param(key, str(value)[:LONGEST]) for key, value in self.plan["params"].items() if key not in run.data.params
        ]
        for first in range(0, len(new), MOST_PARAMS):
            self.client.log_batch(self.run_id, params=new[first : first + MOST_PARAMS])

    def send(self, records: list[dict]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(key, value, int(record["time"] * 1000), record["step"])
            for record in records
            for key, value in record.get("metrics", {}).items()
        ]
        try:
            for first in range(0, len(metrics), MOST_METRICS):
                self.client.log_batch(self.run_id, metrics=metrics[first : first + MOST_METRICS])
            for record in records:
                if "artifact" in record and Path(record["artifact"]).exists():
                    self.client.log_artifact(self.run_id, record["artifact"])
        except Exception as error:
            raise self.explained(error) from error

    def delivered(self) -> bool:
        return True  # send returns when the server has it

    def end(self, status: str | None) -> None:
        if status is not None:
            self.client.set_terminated(self.run_id, STATUS[status])

    def abandon(self) -> None:
        """Nothing runs beside this process."""

    def explained(self, error: Exception) -> Exception:
        """The same failure with what to do about it, where that is known."""
        text = str(error)
        if "Invalid Host header" in text:
            host = urlsplit(self.uri).netloc.rpartition("@")[2]
            return Refused(
                f"the MLflow server does not answer to the name {host}: start it with --allowed-hosts '{host}' "
                "(MLFLOW_SERVER_ALLOWED_HOSTS)"
            )
        if isinstance(error, ImportError):
            return Refused(f"{text}: this URI needs the full package mlflow")
        status = getattr(error, "get_http_status_code", lambda: 500)()
        if "401" in text or "403" in text:
            return Refused(
                f"the MLflow server refuses: {text}; check MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN"
            )
        return Refused(text) if 400 <= status < 500 else error
