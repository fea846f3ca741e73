"""Errors: all at once, each at its place, in a form that editors understand, and without secrets."""

import json

import pytest

BROKEN = """\
name: RL
execution: parallel
placement: NEAR
---
name: trainer
resources:
  acclerators: H100:8
  memory: lots
  cpus: 4
num_nodes: 0
---
run: echo hi
envs:
  TOKEN: null
"""


def test_all_errors_sorted_by_position(errors):
    lines = errors(BROKEN)
    assert [line.split(": error: ")[0] for line in lines] == ["1:7", "3:12", "7:3", "8:11", "10:12", "12:1", "14:10"]
    assert (
        lines[2] == '7:3: error: task "trainer": $.resources.acclerators: unknown field; did you mean "accelerators"?'
    )
    assert lines[5] == '12:1: error: task 2: $: must have a "name" field'


def test_errors_as_json(jobgen, tmp_path):
    (tmp_path / "a.yaml").write_text(BROKEN)
    (tmp_path / "b.yaml").write_text("name: rl\nexecution: parallel\n---\nname: t\n")
    result = jobgen("validate", "--format", "json", tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert (result.exit_code, result.stderr) == (1, "")
    found = json.loads(result.stdout)
    assert len(found) == 7
    assert found[2] == {
        "file": str(tmp_path / "a.yaml"),
        "line": 7,
        "column": 3,
        "task": "trainer",
        "path": "$.resources.acclerators",
        "message": 'unknown field; did you mean "accelerators"?',
    }
    assert json.loads(jobgen("validate", "--format", "json", tmp_path / "b.yaml").stdout) == []


def test_every_file_is_checked(jobgen, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("name: foo\n")
    result = jobgen("validate", tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "b.yaml"),
    ]


def test_duplicate_keys(errors):
    lines = errors("name: rl\nexecution: parallel\n---\nname: t\nresources:\n  cpus: 1\n  cpus: 2\nname: u\n")
    assert lines == [
        '7:3: error: task "t": $.resources.cpus: duplicate key (first at line 6)',
        '8:1: error: task "t": $.name: duplicate key (first at line 4)',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "name: rl\n<<<<<<< HEAD\nexecution: parallel\n",
            "2:1: error: merge conflict marker: resolve the conflict first",
        ),
        ("name: rl\nexecution: a: b\n", "2:13: error: mapping values are not allowed here"),
        ("name: rl\nx: \x07\n", "2:4: error: a control character, which YAML does not allow"),
        (b"name: rl\nx: \xff\n", "2:1: error: not UTF-8 text"),
        ("a: &a [*a]\n", "1:4: error: nested too deeply, or too large"),
        ("[" * 5000, "1:1: error: nested too deeply"),
    ],
)
def test_what_is_not_yaml(jobgen, text, expected):
    result = jobgen("validate", "-", stdin=text)
    assert (result.exit_code, result.stderr) == (1, f"<stdin>:{expected}\n")


def test_alias_bomb_ends_soon(jobgen):
    levels = "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 10)}]\n" for i in range(1, 10))
    result = jobgen("validate", "-", stdin=f"execution: parallel\nk0: &k0 [x]\n{levels}")
    assert result.exit_code == 1 and "too large" in result.stderr


@pytest.mark.parametrize(
    "envs",
    [
        "{TOKEN: [s3cret]}",
        "{TOKEN: {s3cret: s3cret}}",
        "{TOKEN: s3cret, TOKEN: s3cret}",
        "{TOKEN: *s3cret}",
        "{TOKEN: !s3cret x}",
        "{TOKEN: 's3cret}",
        "[s3cret]",
        "s3cret",
    ],
)
def test_values_of_envs_never_show(jobgen, envs):
    text = f"name: rl\nexecution: parallel\n---\nname: t\nenvs: {envs}\n"
    for options in ([], ["--format", "json"]):
        result = jobgen("validate", *options, "-", stdin=text)
        assert result.exit_code == 1 and "s3cret" not in result.output


def test_document_that_is_no_mapping(errors):
    assert errors("name: rl\nexecution: parallel\n---\n- a\n---\nname: t\n") == [
        "4:1: error: task 1: $: must be a mapping, got a list"
    ]


def test_another_execution(errors):
    assert errors("name: rl\nexecution: serial\n---\nname: t\n") == [
        '2:12: error: header: $.execution: not a job group: must be parallel, got "serial"'
    ]
