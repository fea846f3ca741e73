"""train_framework.py with the real clients: MLflow's server is real, Pluto's is a stand-in.

No fault of a server may end, hold or delay the training; what the server has afterwards is counted.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.paths import REPO
from tests.helpers.processes import descendants, environment, until
from tests.helpers.train_runs import LM, Ranks, cut_off, language_model
from tests.tracking.pluto_stand_in import KEY, series, terminal

SLOW = str(REPO / "tests" / "launch_programs" / "slow_language_model.py")
STEPS = 60
LONGEST_STEP_S = 1.0
END_S = 10 + 1  # Tracking's `seconds`, and what it adds


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> tuple[object, ...]:
    flags = language_model(tmp_path_factory.mktemp("model"))
    return (*flags, "--set", "logging_steps=1", "--set", f"max_steps={STEPS}", "--epochs", 9)


def start(folder: Path, model: tuple, *flags: object, world: int = 1, **variables: object) -> Ranks:
    return Ranks(
        SLOW, folder, *model, *flags, world=world, RUN_ID="run", PLUTO_DIR=folder, **variables
    )


def stopped_run(
    folder: Path, model: tuple, *flags: object, number: int = signal.SIGTERM, **variables: object
):
    """A start that is cut off amid the training, when the tracker knows its run."""
    more = {"known": "state=started", "RUN_ID": "run", "PLUTO_DIR": folder, **variables}
    ranks = cut_off(SLOW, folder, 30, number, *model, *flags, **more)
    assert ranks.wait() == [75 if number == signal.SIGTERM else -9], ranks.output


def mlflow_at(uri: str, experiment: str) -> dict[str, str]:
    return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": experiment}


def pluto_at(server) -> dict[str, str]:
    urls = {f"PLUTO_URL_{name}": server.uri for name in ("APP", "API", "INGEST", "PY")}
    return {"PLUTO_API_KEY": KEY, "PLUTO_PROJECT": "tests", "PLUTO_RUN_ID": "run-7f3a", **urls}


def assert_undisturbed(ranks: Ranks):
    ranks.end(0)
    assert float(ranks.fact("GAP", "seconds")) < LONGEST_STEP_S, ranks.output
    assert ranks.fact("DONE", "status") == "finished"


def test_mlflow_gets_one_finished_run_with_all_points(tmp_path, model, mlflow):
    assert_undisturbed(start(tmp_path, model, world=2, **mlflow_at(mlflow.uri, "good")))
    [run] = mlflow.runs("good")
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert mlflow.steps(run) == list(range(1, STEPS + 1))
    assert run.data.params["lr"] == "0.001" and run.data.params["seed"] == "42"


MATRIX = [
    pytest.param(fault, *steps, marks=() if (fault, steps[0]) in (("hang", 0), ("500", 20)) else pytest.mark.matrix)
    for fault in ("drop", "hang", "500", "401") for steps in ((0, 0), (0, 30), (30, 0), (20, 40))
]  # fmt: skip


@pytest.mark.parametrize(("fault", "on", "off"), MATRIX)
def test_no_fault_of_mlflow_disturbs_the_training(tmp_path, model, mlflow, proxy, fault, on, off):
    """The fault begins and ends after these steps; 0: it is there at the start, or to the end."""
    experiment = f"{fault} {on} {off}"
    proxy.fault = "" if on else fault
    ranks = start(tmp_path, model, **mlflow_at(proxy.uri, experiment))
    for step, new in ((on, fault), (off, "")):
        if step:
            until(lambda step=step: f"step={step}/" in ranks.output, f"step {step}", 120)
            proxy.fault = new
    assert_undisturbed(ranks)
    runs = mlflow.runs(experiment)
    assert len(runs) <= 1
    if proxy.fault:
        assert "[TRACK]" in ranks.output and "state=unsent" in ranks.output
    else:
        assert runs[0].info.status == "FINISHED"
        assert mlflow.steps(runs[0]) == list(range(1, STEPS + 1)), (
            "what was not sent in time is sent later"
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_goes_on_is_the_same_run(tmp_path, model, mlflow, number):
    at = mlflow_at(mlflow.uri, f"again {number}")
    stopped_run(tmp_path, model, "--save-every", 5, number=number, **at)
    until(lambda: mlflow.runs(f"again {number}"), "what the killed process left is sent", 30)
    [run] = mlflow.runs(f"again {number}")
    assert run.info.status == "RUNNING"
    start(tmp_path, model, "--save-every", 5, **at).end(0)
    [run] = mlflow.runs(f"again {number}")
    assert run.info.status == "FINISHED"
    assert sorted({*mlflow.steps(run)}) == list(range(1, STEPS + 1))


def test_a_run_that_fails_is_marked_so(tmp_path, model, mlflow):
    """A process as a user starts it: those of the other tests run no exit handlers."""
    fail = tmp_path / "fail"
    command = [sys.executable, SLOW, "--output", tmp_path / "out", "--run-id", "run", *model]
    paused = {"PAUSE_AT": 5, "PAUSE_FILE": fail}
    env = environment(HF_HUB_OFFLINE=1, **paused, **mlflow_at(mlflow.uri, "failed"))
    with subprocess.Popen([*map(str, command)], env=env) as process:
        until(lambda: mlflow.runs("failed"), "the tracker has a run", 120)
        fail.write_text("fail")
        assert process.wait(120) == 1
    [run] = mlflow.runs("failed")
    assert run.info.status == "FAILED"


def test_an_address_with_a_password_is_refused_without_showing_it(tmp_path, model):
    ranks = start(tmp_path, model, MLFLOW_TRACKING_URI="http://me:hidden@127.0.0.1:1").end(1)
    assert "hidden" not in ranks.output.replace("hidden_", "")


@pytest.mark.parametrize("program", [SLOW, LM], ids=["slow", "over before the client has started"])
def test_pluto_gets_one_run_of_all_ranks(tmp_path, model, pluto, program):
    more = {"RUN_ID": "run", "PLUTO_DIR": tmp_path, **pluto_at(pluto)}
    Ranks(program, tmp_path, *model, world=2, **more).end(0)
    [run] = pluto.runs.values()
    assert run["externalId"] == "run-7f3a" and run["joined"] == 1
    assert series(run, "loss") == list(range(1, STEPS + 1)), "rank 0"
    assert terminal(run) == ["COMPLETED"] and run["statuses"][-1] == "COMPLETED", (
        "no late rank opens it again"
    )


PLUTO_MATRIX = [
    pytest.param(fault, at, marks=() if (fault, at) in (("hang", 0), ("cancel", 30)) else pytest.mark.matrix)
    for fault in ("500", "hang", "slow", "drop", "cancel") for at in (0, 30)
]  # fmt: skip


@pytest.mark.parametrize(("fault", "at"), PLUTO_MATRIX)
def test_no_fault_of_pluto_disturbs_the_training(tmp_path, model, pluto, fault, at):
    pluto.fault = "" if at else fault
    ranks = start(tmp_path, model, world=2, **pluto_at(pluto))
    if at:
        until(lambda: f"step={at}/" in ranks.output, f"step {at}", 120)
        pluto.fault = fault
    assert_undisturbed(ranks)
    assert len(pluto.runs) <= 1


def test_a_stopped_run_is_the_same_in_pluto(tmp_path, model, pluto):
    stopped_run(tmp_path, model, **pluto_at(pluto))
    start(tmp_path, model, **pluto_at(pluto)).end(0)
    [run] = pluto.runs.values()
    assert terminal(run) == ["COMPLETED"]
    assert sorted({*series(run, "loss")}) == list(range(1, STEPS + 1))


def test_the_key_is_on_no_command_line_and_in_no_file(tmp_path, model, pluto):
    go = tmp_path / "go"
    pause = {"PAUSE_AT": 31, "PAUSE_FILE": go}
    ranks = start(tmp_path, model, TMPDIR=tmp_path, HOME=tmp_path, **pause, **pluto_at(pluto))
    until(lambda: "state=started" in ranks.output, "the run is known", 120)
    found = descendants(ranks.processes[0].pid)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found]
    assert any(b"_sync_main" in line for line in lines), "the uploader runs"
    assert not any(KEY.encode() in line for line in lines)
    go.touch()
    ranks.end(0)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
