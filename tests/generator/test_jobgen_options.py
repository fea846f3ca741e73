"""Options as SkyPilot's command has them: variables, secrets, name, and what counts as an error."""

import json
from pathlib import Path

import pytest
import yaml

from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n---\n"
TASK = "name: t\nenvs: {EPOCHS: 1, HF_TOKEN: }\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_env_takes_a_value_from_the_environment(task_values, jobgen, monkeypatch):
    monkeypatch.setenv("EPOCHS", "9 9")
    assert task_values("name: t\nenvs: {EPOCHS: }\n", "--env", "EPOCHS")["env"] == {"EPOCHS": "9 9"}
    monkeypatch.delenv("EPOCHS")
    result = jobgen("to-values", "--env", "EPOCHS", "-", stdin=HEADER + "name: t\n")
    assert result.exit_code == 2 and "EPOCHS" in result.stderr and "environment" in result.stderr


def test_secret_takes_the_place_of_a_variable(values):
    found, (note,) = values(HEADER + TASK + "---\nname: u\nsecrets: {A: }\n", "--secret", "HF_TOKEN=s3cret-value")
    assert [task["secrets"] for task in found["tasks"].values()] == [["HF_TOKEN"], ["A", "HF_TOKEN"]]
    assert found["tasks"]["t"]["env"] == {"EPOCHS": "1"}
    assert "s3cret" not in str(found) + note and "HF_TOKEN" in note


@pytest.mark.parametrize("secrets", ["{HF_TOKEN: x}", "['secrets:HF_TOKEN']", "{'secrets:personal.HF_TOKEN': }"])
def test_secret_repeats_a_name_of_the_file(task_values, secrets):
    assert task_values(f"name: t\nsecrets: {secrets}\n", "--secret", "HF_TOKEN")["secrets"] == ["HF_TOKEN"]


def test_files_with_variables_and_secrets(task_values, folder):
    Path("a.env").write_text("# run\nexport EPOCHS=2\nOTHER='x y'\nWANDB_API_KEY=s3cret-1\nLICENSE=s3cret-2\n")
    Path("b.env").write_text('CODE="s3cret-3"\n')
    task = "name: t\nenvs: {EPOCHS: , OTHER: }\nsecrets: {LICENSE: }\n"
    found = task_values(task, "--env-file", "a.env", "--secret-file", "b.env", "--env", "EPOCHS=3")
    assert found["env"] == {"EPOCHS": "3", "OTHER": "x y"}
    assert set(found["secrets"]) == {"LICENSE", "CODE", "WANDB_API_KEY"}
    assert "s3cret" not in str(found)


def test_a_secret_from_the_command_line_is_found_in_scripts(errors, folder):
    Path("b.env").write_text("LICENSE=abcdefghij\n")
    (line,) = errors(HEADER + "name: t\nrun: x --license abcdefghij\n", "--secret-file", "b.env")
    assert brief(line) == "5:6 $.run credential-value" and "abcdefghij" not in line


@pytest.mark.parametrize("option", ["--env-file", "--secret-file"])
def test_unusable_variable_files_are_usage_errors_without_values(jobgen, folder, option):
    Path("a.env").write_text("A=1\ns3cret\n")
    result = jobgen("to-values", option, "a.env", "-", stdin=HEADER + "name: t\n")
    assert result.exit_code == 2 and "line 2" in result.stderr and "s3cret" not in result.stderr
    assert jobgen("to-values", option, "no.env", "-", stdin=HEADER + "name: t\n").exit_code == 2


@pytest.mark.parametrize("option", ["--name", "-n"])
def test_name_replaces_the_name_of_the_group(values, option):
    assert values(HEADER + "name: t\n", option, "other")[0]["name"] == "other"


LOSSES = [
    ("name: t\nresources: {ports: 80}\n", "ignored-field"),
    ("name: t\nresources: {priority: 1}\n", "ignored-field"),
]


@pytest.mark.parametrize(("task", "code"), LOSSES)
def test_strict_refuses_what_is_lost(task_notes, errors, task, code):
    assert len(task_notes(task)) == 1
    (line,) = errors(HEADER + task, "--strict")
    assert line.endswith(f"[{code}]")


def test_strict_refuses_warnings_and_excludes_lenient(jobgen, task_values):
    assert task_values("name: t\nenvs: {A: b}\nvolumes: {/a: claim}\n", "--strict")
    result = jobgen("validate", "--strict", "--lenient", "-", stdin=HEADER + "name: t\n")
    assert result.exit_code == 2


def test_quiet_prints_no_notes(jobgen):
    text = HEADER + "name: t\nresources: {ports: 80}\nvolumes: {/a: claim}\n"
    for command in ("validate", "to-values"):
        result = jobgen(command, "--quiet", "-", stdin=text)
        assert (result.exit_code, result.stderr) == (0, "")
    assert jobgen("validate", "-q", "--format", "json", "-", stdin=text).stdout == "[]\n"
    assert "wrong-type" in jobgen("validate", "-q", "-", stdin=text + "num_nodes: x\n").stderr


def test_an_unreadable_file_does_not_hide_the_others(jobgen, folder):
    Path("good.yaml").write_text(HEADER + "name: t\n")
    Path("bad.yaml").write_text(HEADER + "name: t\nnum_nodes: 0\n")
    result = jobgen("validate", "-q", "no.yaml", "bad.yaml", ".", "good.yaml")
    assert result.exit_code == 2
    assert "bad.yaml:5:12: error" in result.stderr and "no.yaml: No such file" in result.stderr
    assert result.stderr.splitlines()[-1] == "1 of 4 files is valid: 1 error in 1 file"
    result = jobgen("validate", "--format", "json", "no.yaml", "bad.yaml")
    assert result.exit_code == 2 and len(json.loads(result.stdout)) == 1 and "no.yaml" in result.stderr


def test_several_files_are_counted(jobgen, folder):
    for name in ("a.yaml", "b.yaml"):
        Path(name).write_text(HEADER + "name: t\n")
    result = jobgen("validate", "-q", "a.yaml", "b.yaml")
    assert (result.exit_code, result.stderr) == (0, "2 of 2 files are valid\n")


def test_shells_complete_file_names():
    from click.shell_completion import BashComplete

    from jobgen.cli import cli

    complete = BashComplete(cli, {}, "jobgen", "_JOBGEN_COMPLETE")
    for arguments in (["validate"], ["to-values"], ["to-values", "-o"], ["to-values", "--env-file"]):
        assert [each.type for each in complete.get_completions(arguments, "gr")] == ["file"]


def test_the_values_of_secrets_stay_out_of_the_values_file(jobgen, folder):
    Path("s.env").write_text("HF_TOKEN=s3cret-value\n")
    Path("group.yaml").write_text(HEADER + TASK + "workdir: .\n")
    Path("code.py").write_text("x")
    result = jobgen("to-values", "--secret-file", "s.env", "group.yaml")
    assert result.exit_code == 1 and '"s.env"' in result.stderr  # found by its name, and by its content
    Path("s.env").rename("values")
    Path(".skyignore").write_text("values\n")
    result = jobgen("to-values", "--secret-file", "values", "group.yaml")
    assert result.exit_code == 0 and "s3cret" not in result.output
    assert yaml.safe_load(result.stdout)["tasks"]["t"]["secrets"] == ["HF_TOKEN"]


def test_the_source_is_never_the_target(jobgen, tmp_path):
    source = tmp_path / "group.yaml"
    source.write_text(f"{HEADER}name: t\nrun: x\n")
    for command in ("to-values", "from"):
        assert jobgen(command, source, "-o", source).exit_code == 2
    assert source.read_text().endswith("run: x\n")


def test_a_variable_is_not_plain_and_secret(jobgen):
    text = f"{HEADER}name: t\nrun: x\n"
    assert jobgen("to-values", "--env", "A=v", "--secret", "A", "-", stdin=text).exit_code == 2
