"""Variables and secrets: their conversion, and messages that never contain their values."""

import pytest

from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n---\n"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("no", "False"),
        ("true", "True"),
        ("12:30", "750"),
        ("010", "8"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("1.10", "1.1"),
        ("0b11", "3"),
        ("+1", "1"),
        ("2026-01-02T03:04:05Z", "2026-01-02 03:04:05+00:00"),
    ],
)
def test_what_yaml_changes_is_noted_without_the_value(task_values, task_notes, written, text):
    task = f"name: t\nenvs: {{A: {written}}}\n"
    assert task_values(task)["env"] == {"A": text}
    (note,) = task_notes(task)
    assert note.startswith("note[") and brief(note) == "$.envs.A yaml-surprise"
    assert task_values(f"name: t\nenvs: {{A: '{written}'}}\n")["env"] == {"A": written}
    assert task_notes(f"name: t\nenvs: {{A: '{written}'}}\n") == []


def test_env_option_overrides_adds_and_fills_in(task_values, task_notes):
    task = "{name: t, envs: {A: no, B: null}}"
    options = ("--env", "A=x=y", "--env", "B=", "--env", "C=3")
    assert task_values(task, *options)["env"] == {"A": "x=y", "B": "", "C": "3"}
    assert task_notes(task, *options) == []


@pytest.mark.parametrize(
    "secrets",
    [
        "secrets: {HF_TOKEN: s3cret, WANDB: null}",
        "secrets: ['secrets:HF_TOKEN', 'secrets:personal.WANDB']",
        "secrets: {'secrets:workspace.HF_TOKEN': , WANDB: }",
        "secrets: {HF_TOKEN: }\nmanaged_secrets: [global.WANDB]",
        "managed_secrets: [HF_TOKEN, WANDB]",
    ],
)
def test_secrets_become_references(values, secrets):
    found, lines = values(f"{HEADER}name: t\n{secrets}\n")
    assert found["secretName"] == "rl-secrets"
    assert found["tasks"]["t"]["secrets"] == ["HF_TOKEN", "WANDB"]
    command = r"printf '%s\n' HF_TOKEN WANDB | kubectl create secret generic rl-secrets --from-env-file=/dev/stdin"
    assert sum(command in line for line in lines) == 1
    assert "s3cret" not in str(found) + str(lines)


def test_a_reference_to_a_secret_and_a_variable_exclude_each_other(task_error):
    error = task_error("name: t\nsecrets: ['secrets:A']\nenvs: {A: x}\n")
    assert brief(error) == "$.secrets[0] conflicting-fields"


def test_a_secret_that_is_empty_in_the_file_is_optional(values):
    """SkyPilot leaves it empty without --secret, so removing it from the file is no advice."""
    found, lines = values(f"{HEADER}name: t\nsecrets: {{WANDB: '', HF_TOKEN: s3cret}}\n")
    assert found["tasks"]["t"]["secrets"] == ["WANDB", "HF_TOKEN"]
    empty, given = [line for line in lines if "[secret-value]: " in line]
    assert "$.secrets.WANDB: " in empty and "not exported" in empty and "remove" not in empty
    assert "$.secrets.HF_TOKEN: " in given and "remove it from the file" in given


def test_all_tasks_share_one_secret(values):
    text = f"{HEADER}name: a\nsecrets: {{A: }}\n---\nname: b\nsecrets: {{B: }}\n---\nname: c\n"
    found, lines = values(text, "--name", "other")
    assert found["secretName"] == "other-secrets"
    assert [task.get("secrets") for task in found["tasks"].values()] == [["A"], ["B"], None]
    (note,) = lines
    assert "' A B | kubectl create secret generic other-secrets --from-env-file=/dev/stdin" in note


FIELDS = [
    "envs: {TOKEN: [s3cret]}",
    "envs: {TOKEN: {s3cret: s3cret}}",
    "envs: {TOKEN: s3cret, TOKEN: s3cret}",
    "envs: {TOKEN: *s3cret}",
    "envs: {TOKEN: !s3cret x}",
    "envs: {TOKEN: 's3cret}",
    "envs: [s3cret]",
    "envs: s3cret",
    "secrets: {TOKEN: [s3cret]}",
    "secrets: [s3cret]",
    "secrets: s3cret",
    "secrets: {TOKEN: s3cret}\nnum_nodes: 0",
    "secrets: {TOKEN: s3cret}\nworkdir: $TOKEN",
    "workdir: {url: 'https://me:s3cret@example.com/x.git'}",
    "envs:\n  TOKEN: |\n    s3cret\n    s3cret\n  1A: s3cret\nnum_nodes: 0",
]


@pytest.mark.parametrize("fields", FIELDS)
def test_values_of_envs_and_secrets_never_show(jobgen, fields):
    result = jobgen("validate", "-", stdin=f"{HEADER}name: t\n{fields}\n")
    assert result.exit_code == 1 and "s3cret" not in result.output
