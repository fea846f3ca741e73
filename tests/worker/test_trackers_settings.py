"""Trackers that a rank reports to, names of metrics, and settings that are refused; without the clients' packages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpuworker.train.trackers import RankInfo, SettingsError, add_arguments, open_trackers, settings, spool
from gpuworker.train.trackers.tracker import flatten, metric_keys

SERVER = "http://mlflow.mlflow.svc:5000"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Environment without tracker variables; both packages count as installed."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_ALLOW_FILE_STORE",
        "PLUTO_RUN_ID",
        settings.REQUIRED,
        *settings.PLUTO_KEYS,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "installed", lambda name: True)
    return monkeypatch


def opened(*flags: str, info: RankInfo | None = None) -> tuple[str, ...]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return open_trackers(parser.parse_args(flags), info or RankInfo()).names


@pytest.mark.parametrize("run_id,example", [("7", "run-7"), ("20261121", "run-20261121"), ("LLM-12", "run-llm-12")])
def test_run_ids_that_pluto_would_look_up_are_refused_with_an_id_that_works(
    environment, run_id: str, example: str
) -> None:
    environment.setenv("PLUTO_API_KEY", "x")
    environment.setenv("PLUTO_RUN_ID", run_id)
    with pytest.raises(SettingsError, match=f"PLUTO_RUN_ID={run_id}.*{example}$"):
        opened()


@pytest.mark.parametrize("run_id", ["", ".", "../x", "a/b", "a b", "²", "x" * 201, "-x"])
def test_run_ids_that_cannot_be_folder_names_are_refused(run_id: str) -> None:
    with pytest.raises(SettingsError, match="at most 200 letters"):
        settings.check_run_id(run_id, "run id")


@pytest.mark.parametrize("run_id", ["run-7", "run-ddp-run-1f2e3d4c", "LLMXX-12", "llm-12", "LLM-12a", "7f", "x" * 200])
def test_other_run_ids_are_accepted(run_id: str) -> None:
    settings.check_run_id(run_id, "run id")


def test_the_environment_selects_the_trackers_unless_a_flag_does(environment) -> None:
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
        (["--trackers", "wandb"], "'wandb'.*pluto, mlflow"),
        (["--trackers", "pluto"], "PLUTO_API_KEY"),
        (["--trackers", "mlflow"], "MLFLOW_TRACKING_URI"),
    ],
)
def test_missing_settings_are_named(flags: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        opened(*flags)


def test_a_missing_package_is_an_error_if_a_flag_or_a_value_of_the_chart_asks_for_the_tracker(
    environment, capsys
) -> None:
    environment.setattr(settings, "installed", lambda name: False)
    environment.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert opened() == ()
    assert "mlflow-skinny" in capsys.readouterr().out
    for flags in (["--trackers", "mlflow"], ["--tracker-required"]):
        with pytest.raises(SettingsError, match="mlflow-skinny"):
            opened(*flags)
    environment.setenv(settings.REQUIRED, "false")  # what the chart sets if its values name a tracker
    with pytest.raises(SettingsError, match="mlflow-skinny"):
        opened()
    assert opened("--trackers", "none") == ()


@pytest.mark.parametrize("uri", ["/mnt/mlruns", "mlruns", "file:///mnt/mlruns"])
def test_mlflows_file_store_is_refused_without_opt_in_and_then_only_rank_0_reports(environment, uri: str) -> None:
    environment.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(SettingsError, match=r"sqlite:////out/mlflow\.db.*MLFLOW_ALLOW_FILE_STORE=true"):
        opened()
    environment.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert opened() == ("mlflow",)
    assert opened(info=RankInfo(1, 0, 1, 2, 2)) == ()


def test_the_first_rank_of_each_node_reports_or_all_ranks_or_only_rank_0(environment) -> None:
    environment.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert opened(info=RankInfo(2, 0, 1, 4, 2)) == ("mlflow",), "the first rank of a node"
    assert opened(info=RankInfo(3, 1, 1, 4, 2)) == ()
    assert opened("--tracker-ranks", "all", info=RankInfo(3, 1, 1, 4, 2)) == ("mlflow",)
    environment.setenv("MLFLOW_TRACKING_URI", "sqlite:////out/mlflow.db")
    assert opened("--tracker-ranks", "all", info=RankInfo(0, 0, 0, 4, 2)) == ("mlflow",)
    assert opened("--tracker-ranks", "all", info=RankInfo(2, 0, 1, 4, 2)) == (), "SQLite has one writer"


def test_metrics_of_ranks_and_nodes_have_prefixes() -> None:
    assert metric_keys({"loss": 1.0}, RankInfo()) == {"loss": 1.0}
    assert metric_keys({"loss": 1.0}, RankInfo(0, 0, 0, 4, 2)) == {"loss": 1.0, "node-0/loss": 1.0}
    assert metric_keys({"loss": 1.0}, RankInfo(2, 0, 1, 4, 2)) == {"node-1/loss": 1.0}
    assert metric_keys({"loss": 1.0}, RankInfo(3, 1, 1, 4, 2)) == {"node-1/rank-3/loss": 1.0}


def test_nested_parameters_become_dotted_names() -> None:
    given = {"lr": 0.1, "model": {"layers": 2, "act": None}, "path": Path("/x"), "bad": float("nan")}
    assert flatten(given) == {"lr": 0.1, "model.layers": 2, "model.act": None, "path": "/x", "bad": "nan"}


@pytest.mark.parametrize(
    "restarts,attempt,ignored,left",
    [("", "", "", 0), ("2", "0", "", 2), ("2", "2", "", 0), ("2", "3", "2", 1), ("0", "5", "", 0)],
)
def test_preempted_attempts_do_not_count_against_the_restarts(
    restarts: str, attempt: str, ignored: str, left: int
) -> None:
    given = {settings.MAX_RESTARTS: restarts, "ATTEMPT": attempt, settings.ATTEMPTS_IGNORED: ignored}
    assert settings.failures_left(given) == left


def test_undelivered_records_are_saved_with_their_configuration(tmp_path: Path) -> None:
    (tmp_path / spool.CONFIG).write_text(json.dumps({"tracker": "pluto", "rank": 3}))
    writer = spool.SpoolWriter(tmp_path)
    for step in range(5):
        writer.write({"step": step, "time": 1.0, "metrics": {"loss": float("nan")}})
    writer.write({"end": "finished"})
    writer.close()
    with open(tmp_path / spool.SPOOL, "a") as file:
        file.write('{"cut sh')  # by a SIGKILL
    first, offset = spool.read_records(tmp_path / spool.SPOOL, 0, 2)
    assert [record["step"] for record in first] == [0, 1]
    count, kept = spool.save_unsent(tmp_path, offset, tmp_path / "out")
    assert count == 3 and kept.parent == tmp_path / "out" and kept.name.startswith("unsent-pluto-rank-3-")
    config, *records = map(json.loads, kept.read_text().splitlines())
    assert config == {"config": {"tracker": "pluto", "rank": 3}}
    assert [record.get("step") for record in records] == [2, 3, 4, None] and records[-1] == {"end": "finished"}


def test_records_stay_on_the_nodes_disk_if_the_output_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / spool.CONFIG).write_text(json.dumps({"tracker": "pluto", "rank": 0}))
    writer = spool.SpoolWriter(tmp_path)
    writer.write({"step": 0})
    writer.close()
    (tmp_path / "file").touch()
    assert spool.save_unsent(tmp_path, 0, tmp_path / "file" / "out")[1].parent == tmp_path


def test_a_full_spool_counts_lost_records_and_still_takes_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LIMIT", 1 << 20)
    writer = spool.SpoolWriter(tmp_path)
    writer.size = 1 << 20
    writer.write({"step": 0})
    writer.write({"end": "finished"})
    writer.close()
    assert writer.lost == 1 and writer.why.startswith("1 MiB ")
    assert spool.read_records(tmp_path / spool.SPOOL, 0)[0] == [{"end": "finished"}]
