"""MLflow's real client against a real `mlflow server` on SQLite, with one process per rank."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.processes import until
from tests.tracking.conftest import REPO, Ranks, Refusing

STEPS = 60


class Mlflow:
    def __init__(self, port: int):
        self.uri = f"http://127.0.0.1:{port}"
        self.port = port
        self.group = 0  # of the server's processes
        self.artifacts = Path()

    def call(self, path: str, body: dict | None = None) -> dict:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[dict]:
        experiments = self.call("experiments/search", {"max_results": 100}).get("experiments", [])
        numbers = [each["experiment_id"] for each in experiments if each["name"] == experiment]
        return self.call("runs/search", {"experiment_ids": numbers}).get("runs", []) if numbers else []

    def series(self, run: dict, key: str) -> list[int]:
        found = self.call(f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={key}&max_results=25000")
        return sorted(int(point.get("step", 0)) for point in found.get("metrics", []))


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = Mlflow(free.getsockname()[1])
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("mlflow"), "server", "--host", "127.0.0.1", "--port", str(server.port),
                "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", folder / "artifacts",
                "--allowed-hosts", f"127.0.0.1:{server.port}", "--workers", "1",
            ],
            env={
                **os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
                "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{server.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    until(ready, "the server answers", 120)
    server.group, server.artifacts = process.pid, folder / "artifacts"
    yield server
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_all_nodes_report_to_one_run(ranks: Ranks, mlflow: Mlflow) -> None:
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "one-run"}
    started = [
        ranks.start("--steps", STEPS, "--artifact", REPO / "LICENSE", rank=rank, world=3, **variables)
        for rank in (1, 2, 0)  # the rank that creates the run starts last
    ]
    for process in started:
        assert "state=sent" in ranks.end(process)[0]
    (run,) = mlflow.runs("one-run")
    assert run["info"]["run_name"] == "tiny" and run["info"]["status"] == "FINISHED"
    every = list(range(STEPS))
    assert mlflow.series(run, "loss") == every
    for rank in range(3):
        assert mlflow.series(run, f"node-{rank}/loss") == every
        assert mlflow.series(run, f"system/node-{rank}/cpu_percent")
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert params == {"lr": "0.1", "model.layers": "2", "first": "0"}
    (artifact,) = mlflow.call(f"artifacts/list?run_id={run['info']['run_id']}")["files"]
    assert (artifact["path"], int(artifact["file_size"])) == ("LICENSE", (REPO / "LICENSE").stat().st_size)
    assert not list(ranks.tmp.iterdir())


def test_a_preempted_run_is_continued_by_the_next_attempt(ranks: Ranks, mlflow: Mlflow) -> None:
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "attempts"}
    process = ranks.start("--steps", 100000, **variables)
    until(lambda: mlflow.runs("attempts"), "it reports")
    process.send_signal(signal.SIGTERM)
    output, facts = ranks.end(process, 75)
    (run,) = mlflow.runs("attempts")
    assert run["info"]["status"] == "RUNNING" and 'status="left open"' in output
    first = facts["last"] + 1
    assert mlflow.series(run, "loss") == list(range(first)), "all until the signal"
    # MLflow rejects a changed parameter, which must not stop the rest.
    ranks.end(ranks.start("--first", first, "--steps", 5, "--end", "failed", **variables))
    (run,) = mlflow.runs("attempts")
    assert run["info"]["status"] == "FAILED"
    assert mlflow.series(run, "loss") == list(range(first + 5))


@pytest.mark.parametrize("fault", ["hang", "host"])
def test_a_failing_server_does_not_delay_the_training_and_no_record_is_lost(
    ranks: Ranks, mlflow: Mlflow, fault: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        if fault == "hang":
            unused.listen()
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}" if fault != "host" else f"http://localhost:{mlflow.port}"
        variables = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": fault}
        process = ranks.start("--steps", 40, "--seconds", 0.05, "--tracker-timeout", 3, **variables)
        output, facts = ranks.end(process)
    assert facts["median"] < 0.01 * 0.05, "1 % of a step"
    assert facts["most"] < 3 and facts["finish"] < 10
    assert "state=unsent" in output
    if fault == "host":
        assert "state=rejected" in output and f"--allowed-hosts 'localhost:{mlflow.port}'" in output
    kept = ranks.unsent("mlflow")
    assert [record["step"] for record in kept[:-1]] == list(range(40)) and kept[-1] == {"end": "finished"}
    if fault != "host":
        return
    (file,) = ranks.out.glob("unsent-*")
    ranks.resend(file, MLFLOW_TRACKING_URI=mlflow.uri, MLFLOW_EXPERIMENT_NAME=fault)
    (run,) = mlflow.runs(fault)
    assert mlflow.series(run, "loss") == list(range(40)) and run["info"]["status"] == "FINISHED"


def test_only_rank_0_reports_to_mlflows_file_store(ranks: Ranks) -> None:
    """With the opt-in variable; needs no server."""
    variables = {"MLFLOW_TRACKING_URI": str(ranks.folder / "mlruns"), "MLFLOW_ALLOW_FILE_STORE": "true"}
    started = [ranks.start("--steps", 5, rank=rank, world=2, **variables) for rank in range(2)]
    output = [ranks.end(process)[0] for process in started]
    assert "state=sent" in output[0] and "rank 0 only" in output[0] and "[TRACK]" not in output[1]
    (file,) = ranks.folder.glob("mlruns/*/*/metrics/loss")
    assert len(file.read_text().splitlines()) == 5


def test_an_artifact_store_that_fails_does_not_keep_the_run_open(ranks: Ranks, mlflow: Mlflow) -> None:
    """S3 without its client in the image, which is usual."""
    mlflow.call("experiments/create", {"name": "s3", "artifact_location": "s3://bucket/path"})
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "s3"}
    output, facts = ranks.end(ranks.start("--steps", 40, "--artifact", REPO / "LICENSE", **variables))
    (run,) = mlflow.runs("s3")
    assert run["info"]["status"] == "FINISHED" and mlflow.series(run, "loss") == list(range(40))
    assert facts["finish"] < 15 and "state=unsent records=" in output and "boto3" in output
    kept = ranks.unsent("mlflow")
    assert kept[0]["artifact"].endswith("LICENSE"), kept
    assert not any("metrics" in record for record in kept)


def test_a_store_behind_the_server_that_fails_does_not_keep_the_run_open(ranks: Ranks, mlflow: Mlflow) -> None:
    """The client writes through the server, as with a bucket behind it, and the server's store refuses the file."""
    number = mlflow.call("experiments/create", {"name": "broken"})["experiment_id"]
    mlflow.artifacts.mkdir(exist_ok=True)
    (mlflow.artifacts / number).write_text("in the place of the experiment's folder")
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "broken"}
    words = ("--steps", 40, "--artifact", REPO / "LICENSE", "--tracker-timeout", 15)
    output, facts = ranks.end(ranks.start(*words, **variables))
    (run,) = mlflow.runs("broken")
    assert run["info"]["status"] == "FINISHED" and mlflow.series(run, "loss") == list(range(40)), output
    assert facts["finish"] < 25 and "state=unsent records=" in output, output
    assert output.count("state=retrying") <= 4, f"one line per reason: {output}"
    kept = ranks.unsent("mlflow")
    assert kept[0]["artifact"].endswith("LICENSE") and not any("metrics" in record for record in kept), kept


@pytest.mark.parametrize("status, state", [(401, "rejected"), (403, "rejected"), (404, "rejected"), (503, "retrying")])
def test_the_status_of_a_response_decides_what_is_logged(ranks: Ranks, status: int, state: str) -> None:
    handler = type("Handler", (Refusing,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{server.server_port}"}
        output, _ = ranks.end(ranks.start("--steps", 5, "--tracker-timeout", 4, **variables))
        server.shutdown()
        thread.join()
    assert f"state={state}" in output, output
    assert ("MLFLOW_TRACKING_USERNAME" in output) == (status in (401, 403)), output


def test_digits_in_an_address_are_no_status(ranks: Ranks) -> None:
    port = next(number for number in (14033, 24012, 34031, 44010) if not in_use(number))
    variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    output, _ = ranks.end(ranks.start("--steps", 5, "--tracker-timeout", 4, **variables))
    assert "state=retrying" in output and "MLFLOW_TRACKING_USERNAME" not in output


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_records_that_were_sent_before_are_kept_once(ranks: Ranks, mlflow: Mlflow) -> None:
    """Steps 0 to 9 again, with their times, as after a resume from a checkpoint."""
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "again"}
    ranks.end(ranks.start("--steps", 10, "--history", 10, "--end", "saved", **variables))
    ranks.end(ranks.start("--first", 10, "--steps", 5, "--history", 10, **variables))
    (run,) = mlflow.runs("again")
    assert mlflow.series(run, "history") == list(range(10))
    assert mlflow.series(run, "loss") == list(range(15))


def test_the_history_is_complete_after_an_outage_in_which_the_run_was_killed(ranks: Ranks, mlflow: Mlflow) -> None:
    """The node is lost with its spool; the checkpoint contains the steps until then."""
    variables = {"MLFLOW_TRACKING_URI": mlflow.uri, "MLFLOW_EXPERIMENT_NAME": "lost"}
    process = ranks.start("--steps", 100000, "--key", "history", **variables)
    until(lambda: len(mlflow.runs("lost") and mlflow.series(mlflow.runs("lost")[0], "history")) > 5, "it reports")
    os.killpg(mlflow.group, signal.SIGSTOP)
    try:
        time.sleep(1.0)  # about 100 steps that the server does not get
        process.kill()
        for sender in ranks.senders():
            os.kill(sender, signal.SIGKILL)
        process.wait()
    finally:
        os.killpg(mlflow.group, signal.SIGCONT)
    (run,) = mlflow.runs("lost")
    got = len(mlflow.series(run, "history"))
    saved = got + 50  # steps of the newest checkpoint
    ranks.end(ranks.start("--first", saved, "--steps", 5, "--history", saved, "--key", "history", **variables))
    (run,) = mlflow.runs("lost")
    assert run["info"]["status"] == "FINISHED"
    assert sorted(set(mlflow.series(run, "history"))) == list(range(saved + 5))
