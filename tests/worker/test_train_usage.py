"""Options that cannot work end a training program with exit code 2 before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuworker.train import tokenize_data, train_framework, train_smoke


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "PLUTO_API_KEY", "PLUTO_API_TOKEN", "MLOP_API_TOKEN", "RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def refused(capfd, folder: Path, *words: object, program=train_smoke) -> str:
    """Output of a program that must end with 2 and leave the folder of its output empty."""
    output = folder / "out"
    output.mkdir()
    try:
        code = program.main([str(word) for word in ("--device", "cpu", "--output", output, *words)])
    except SystemExit as end:
        code = end.code
    printed = "".join(capfd.readouterr())
    assert code == 2, printed
    assert not [path for path in output.rglob("*") if path.name.startswith("epoch-")], printed
    return printed


@pytest.mark.parametrize("flags", [(), ("--trackers", "none")], ids=["none is configured", "none is selected"])
def test_a_required_tracker_must_exist(tmp_path, capfd, flags):
    assert "--tracker-required" in refused(capfd, tmp_path, "--tracker-required", *flags)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\nb", "a\x7fb"])
def test_the_name_of_a_run_is_the_name_of_a_folder(tmp_path, capfd, monkeypatch, name):
    assert "--run" in refused(capfd, tmp_path, "--run", name, "--resume", "never")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    if name:
        monkeypatch.setenv("RUN_ID", name)
        with pytest.raises(SystemExit) as end:
            train_smoke.main(["--device", "cpu"])
        assert end.value.code == 2


@pytest.mark.parametrize(
    "flags",
    [
        ("--lr", 1e-5, "--min-lr", 1),
        ("--tracker-timeout", "nan"),
        ("--tracker-timeout", -1),
        ("--upload", '["no-such-program", "{path}"]'),
        ("--upload", '["echo", "{nope}"]'),
        ("--trackers", "none,mlflow"),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_options_that_contradict_themselves_are_refused(tmp_path, capfd, flags):
    assert flags[-2] in refused(capfd, tmp_path, *flags)


@pytest.mark.parametrize("program", [train_smoke, train_framework, tokenize_data])
@pytest.mark.parametrize(
    "flags",
    [("--epochs", "nan"), ("--epochs", "1e9"), ("--epochs", 0), ("--eval-every", "x"), ("--lr", "fast"), ("--lr", "-1"),
     ("--betas", "fast"), ("--device", "tpu"), ("--no-such-flag",), ("--lr", 1e-5, "--min-lr", 1)],
    ids=lambda flags: " ".join(map(str, flags)),
)  # fmt: skip
def test_a_wrong_option_is_one_line_that_names_it(tmp_path, capfd, program, flags):
    printed = refused(capfd, tmp_path, *flags, program=program)
    assert printed.count("\n") == 1 and printed.startswith("[FATAL] ") and "exit_code=2" in printed, printed
    assert flags[-2:][0] in printed and str(flags[-1]) in printed
    assert not any(name in printed for name in ("positive_int", "non_negative", "adam_betas")), printed


@pytest.mark.parametrize(
    "flags", [("--lora-r", 4), ("--lora-alpha", 4), ("--lora-dropout", 0.5), ("--target-modules", "q")]
)
def test_options_of_lora_need_lora(tmp_path, capfd, flags):
    printed = refused(capfd, tmp_path, "--from-scratch", "gpt2-tiny", *flags, program=train_framework)
    assert flags[0] in printed and "--lora" in printed


@pytest.mark.parametrize("place", ["folder", "below a file", "page"])
def test_a_report_that_cannot_be_written_is_refused_before_the_training(tmp_path, capfd, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "page.html").mkdir()
    path = {"folder": tmp_path, "below a file": tmp_path / "file" / "r.json", "page": tmp_path / "page.json"}[place]
    printed = refused(capfd, tmp_path, "--report-json", path)
    assert printed.count("[FATAL]") == 1 and f"--report-json {path}" in printed and "Traceback" not in printed
    assert not (tmp_path / "page.json").exists()


def test_a_cache_that_cannot_be_written_is_refused_in_one_line(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    flags = ("--from-scratch", "gpt2-tiny", "--cache", cache)
    printed = refused(capfd, tmp_path, *flags, program=train_framework)
    assert printed.count("[FATAL]") == 1 and f"--cache {cache}" in printed and "Traceback" not in printed


def test_a_second_start_of_a_run_that_is_done_names_its_checkpoint(tmp_path, capfd):
    flags = ("--device", "cpu", "--output", str(tmp_path), "--max-steps", "2")
    assert train_smoke.main([*flags]) in (0, 3)
    capfd.readouterr()
    assert train_smoke.main([*flags]) in (0, 3)
    printed = capfd.readouterr().out
    assert "checkpoint=epoch-0001-step-00000002" in printed and "after 2 steps" in printed
    assert " 0 epochs" not in printed and "checkpoint=none" not in printed


@pytest.mark.parametrize("name", ["a.json", "a.html"])
def test_a_report_replaces_nothing_but_a_report(capfd, tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    printed = refused(capfd, tmp_path, "--report-json", tmp_path / "a.json")
    assert "not a report" in printed and (tmp_path / name).read_text() == "mine\n"


def test_a_report_may_be_replaced_by_the_next_one(tmp_path):
    for _ in range(2):
        assert train_smoke.main(["--device", "cpu", "--max-steps", "1", "--report-json", str(tmp_path / "a.json")]) == 3


@pytest.mark.parametrize("world", [{"WORLD_SIZE": "2"}, {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}])
def test_a_world_that_is_named_in_part_is_refused(capfd, tmp_path, monkeypatch, world):
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    printed = refused(capfd, tmp_path)
    assert "start with torchrun" in printed and "Traceback" not in printed
