"""Which trackers a rank reports to, under which names, and which settings are refused; needs none of their packages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpuworker.train.trackers import SettingsError, World, add_arguments, open_trackers, settings, spool, tracker
from gpuworker.train.trackers.tracker import flat, keys_of

SERVER = "http://mlflow.mlflow.svc:5000"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of a tracker, and both packages installed."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_ALLOW_FILE_STORE",
        "PLUTO_RUN_ID",
        "GPU_CHARTS_TRACKERS_REQUIRED",
        *settings.PLUTO_KEYS,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tracker, "installed", lambda name: True)
    return monkeypatch


def opened(*flags: str, world: World | None = None) -> tuple[str, ...]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return open_trackers(parser.parse_args(flags), world or World()).names


@pytest.mark.parametrize("run_id,example", [("7", "run-7"), ("20261121", "run-20261121"), ("LLM-12", "run-llm-12")])
def test_ids_that_pluto_would_look_up_are_refused(environment, run_id: str, example: str) -> None:
    environment.setenv("PLUTO_API_KEY", "x")
    environment.setenv("PLUTO_RUN_ID", run_id)
    with pytest.raises(SettingsError, match=f"PLUTO_RUN_ID={run_id}.*would not start one.*{example}$"):
        opened()


@pytest.mark.parametrize("run_id", ["", ".", "../x", "a/b", "a b", "²", "x" * 201, "-x"])
def test_ids_that_are_no_names_are_refused(run_id: str) -> None:
    with pytest.raises(SettingsError, match="an id of a run is letters"):
        settings.check_run_id(run_id, "run id")


@pytest.mark.parametrize("run_id", ["run-7", "run-ddp-run-1f2e3d4c", "LLMXX-12", "llm-12", "LLM-12a", "7f", "x" * 200])
def test_other_ids_are_taken(run_id: str) -> None:
    settings.check_run_id(run_id, "run id")


def test_the_environment_chooses_the_trackers(environment) -> None:
    assert opened() == ()
    environment.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert opened() == ("mlflow",)
    environment.setenv("PLUTO_API_TOKEN", "x")
    assert opened() == ("pluto", "mlflow")
    assert opened("--trackers", "none") == ()
    assert opened("--trackers", "pluto") == ("pluto",)


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--trackers", "wandb"], "no tracker 'wandb'; there are: pluto, mlflow"),
        (["--trackers", "pluto"], "set PLUTO_API_KEY"),
        (["--trackers", "mlflow"], "set MLFLOW_TRACKING_URI"),
    ],
)
def test_settings_that_are_missing_are_named(flags: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        opened(*flags)


def test_a_missing_package_is_fatal_only_where_it_was_asked_for(environment, capsys) -> None:
    environment.setattr(tracker, "installed", lambda name: False)
    environment.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert opened() == ()
    assert "mlflow-skinny is not in this image" in capsys.readouterr().out
    for flags in (["--trackers", "mlflow"], ["--tracker-required"]):
        with pytest.raises(SettingsError, match="mlflow-skinny is not in this image"):
            opened(*flags)


@pytest.mark.parametrize("uri", ["/mnt/mlruns", "mlruns", "file:///mnt/mlruns"])
def test_mlflows_folder_of_files_is_refused_or_opted_into(environment, uri: str) -> None:
    environment.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(SettingsError, match=r"sqlite:////out/mlflow\.db.*MLFLOW_ALLOW_FILE_STORE=true"):
        opened()
    environment.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert opened() == ("mlflow",)
    assert opened(world=World(1, 0, 1, 2, 2)) == ()


def test_who_reports(environment) -> None:
    environment.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert opened(world=World(2, 0, 1, 4, 2)) == ("mlflow",), "the first rank of a node"
    assert opened(world=World(3, 1, 1, 4, 2)) == ()
    assert opened("--tracker-ranks", "all", world=World(3, 1, 1, 4, 2)) == ("mlflow",)
    environment.setenv("MLFLOW_TRACKING_URI", "sqlite:////out/mlflow.db")
    assert opened("--tracker-ranks", "all", world=World(0, 0, 0, 4, 2)) == ("mlflow",)
    assert opened("--tracker-ranks", "all", world=World(2, 0, 1, 4, 2)) == (), "SQLite has one writer"


def test_names_of_metrics() -> None:
    assert keys_of({"loss": 1.0}, World()) == {"loss": 1.0}
    assert keys_of({"loss": 1.0}, World(0, 0, 0, 4, 2)) == {"loss": 1.0, "node-0/loss": 1.0}
    assert keys_of({"loss": 1.0}, World(2, 0, 1, 4, 2)) == {"node-1/loss": 1.0}
    assert keys_of({"loss": 1.0}, World(3, 1, 1, 4, 2)) == {"node-1/rank-3/loss": 1.0}


def test_parameters_are_flat() -> None:
    given = {"lr": 0.1, "model": {"layers": 2, "act": None}, "path": Path("/x"), "bad": float("nan")}
    assert flat(given) == {"lr": 0.1, "model.layers": 2, "model.act": None, "path": "/x", "bad": "nan"}


@pytest.mark.parametrize(
    "most,attempt,ignored,left",
    [("", "", "", 0), ("2", "0", "", 2), ("2", "2", "", 0), ("2", "3", "2", 1), ("0", "5", "", 0)],
)
def test_failures_that_are_left(most: str, attempt: str, ignored: str, left: int) -> None:
    given = {"GPU_CHARTS_MAX_RESTARTS": most, "ATTEMPT": attempt, "GPU_CHARTS_ATTEMPTS_IGNORED": ignored}
    assert settings.failures_left(given) == left


def test_passwords_are_not_shown() -> None:
    assert settings.without_password("https://me:secret@host:5000/x") == "https://…@host:5000/x"


def test_what_was_not_delivered_is_kept_with_its_plan(tmp_path: Path) -> None:
    (tmp_path / spool.PLAN).write_text(json.dumps({"tracker": "pluto", "rank": 3}))
    writer = spool.Writer(tmp_path)
    for step in range(5):
        writer.write({"step": step, "time": 1.0, "metrics": {"loss": float("nan")}})
    writer.write({"end": "finished"})
    writer.close()
    with open(tmp_path / spool.SPOOL, "a") as file:
        file.write('{"cut sh')  # by a SIGKILL
    first, offset = spool.read(tmp_path / spool.SPOOL, 0, 2)
    assert [record["step"] for record in first] == [0, 1]
    count, kept = spool.keep(tmp_path, offset, tmp_path / "out")
    assert count == 3 and kept.parent == tmp_path / "out" and kept.name.startswith("unsent-pluto-rank-3-")
    plan, *records = map(json.loads, kept.read_text().splitlines())
    assert plan == {"plan": {"tracker": "pluto", "rank": 3}}
    assert [record.get("step") for record in records] == [2, 3, 4, None] and records[-1] == {"end": "finished"}


def test_what_cannot_be_kept_elsewhere_stays_on_the_nodes_disk(tmp_path: Path) -> None:
    (tmp_path / spool.PLAN).write_text(json.dumps({"tracker": "pluto", "rank": 0}))
    writer = spool.Writer(tmp_path)
    writer.write({"step": 0})
    writer.close()
    (tmp_path / "file").touch()
    assert spool.keep(tmp_path, 0, tmp_path / "file" / "out")[1].parent == tmp_path


def test_a_full_spool_loses_records_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LIMIT", 1 << 20)
    writer = spool.Writer(tmp_path)
    writer.size = 1 << 20
    writer.write({"step": 0})
    writer.write({"end": "finished"})
    writer.close()
    assert writer.lost == 1 and writer.why == "1 MiB wait to be sent"
    assert spool.read(tmp_path / spool.SPOOL, 0)[0] == [{"end": "finished"}]
