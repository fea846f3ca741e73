"""Options as SkyPilot's command has them: variables, secrets, name, and what counts as an error."""

import pytest

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
    found, (note,) = values(
        HEADER + TASK + "---\nname: u\nsecrets: {A: }\n", "--secret", "HF_TOKEN=s3cret-value"
    )
    assert [task["secrets"] for task in found["tasks"].values()] == [
        ["HF_TOKEN"],
        ["A", "HF_TOKEN"],
    ]
    assert found["tasks"]["t"]["env"] == {"EPOCHS": "1"}
    assert "s3cret" not in str(found) + note and "HF_TOKEN" in note


@pytest.mark.parametrize(
    "secrets", ["{HF_TOKEN: x}", "['secrets:HF_TOKEN']", "{'secrets:personal.HF_TOKEN': }"]
)
def test_secret_repeats_a_name_of_the_file(task_values, secrets):
    assert task_values(f"name: t\nsecrets: {secrets}\n", "--secret", "HF_TOKEN")["secrets"] == [
        "HF_TOKEN"
    ]


def test_a_secret_from_the_command_line_is_found_in_scripts(errors):
    (line,) = errors(
        HEADER + "name: t\nrun: x --license abcdefghij\n", "--secret", "LICENSE=abcdefghij"
    )
    assert brief(line) == "5:6 $.run credential-value" and "abcdefghij" not in line


@pytest.mark.parametrize("option", ["--name", "-n"])
def test_name_replaces_the_name_of_the_group(values, option):
    assert values(HEADER + "name: t\n", option, "other")[0]["name"] == "other"


def test_the_source_is_never_the_target(jobgen, tmp_path):
    source = tmp_path / "group.yaml"
    source.write_text(f"{HEADER}name: t\nrun: x\n")
    for command in ("to-values", "from"):
        assert jobgen(command, source, "-o", source).exit_code == 2
    assert source.read_text().endswith("run: x\n")


def test_a_variable_is_not_plain_and_secret(jobgen):
    text = f"{HEADER}name: t\nrun: x\n"
    assert jobgen("to-values", "--env", "A=v", "--secret", "A", "-", stdin=text).exit_code == 2
