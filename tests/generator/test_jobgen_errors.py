"""Errors: all in one run, each with its position, in a form that editors parse; and files that are
not job groups.
"""

import pytest

from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n---\n"
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


def test_all_errors_are_sorted_by_position(errors):
    lines = errors(BROKEN)
    assert [line.split(": error[")[0] for line in lines] == [
        "1:7",
        "3:12",
        "7:3",
        "8:11",
        "10:12",
        "12:1",
        "14:10",
    ]
    assert (
        ']: task "trainer": $.resources.acclerators: ' in lines[2] and '"accelerators"?' in lines[2]
    )
    assert "]: task 2: $: " in lines[5] and brief(lines[5]) == "12:1 $ missing-field"


def test_every_file_is_checked(jobgen, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("name: foo\n")
    result = jobgen("validate", tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert result.exit_code == 1
    *lines, count = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "b.yaml"),
    ]
    assert count == "2 errors in 2 files"


def test_the_last_line_counts_each_severity(jobgen):
    text = f"{HEADER}name: t\nevent_callback: x\nresources: {{priority: 1, disk_tier: best}}\n"
    assert (
        jobgen("validate", "-", stdin=text).stderr.splitlines()[-1] == "1 error, 2 notes in 1 file"
    )
    assert jobgen("validate", "-q", "-", stdin=f"{HEADER}name: t\n").stderr == ""


def test_duplicate_keys_name_the_first_line(errors):
    lines = errors(
        "name: rl\nexecution: parallel\n---\nname: t\nresources:\n  cpus: 1\n  cpus: 2\nname: u\n"
    )
    assert list(map(brief, lines)) == [
        "7:3 $.resources.cpus duplicate-key",
        "8:1 $.name duplicate-key",
    ]
    assert "line 6" in lines[0] and "line 4" in lines[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: rl\n<<<<<<< HEAD\nexecution: parallel\n", "3:1 not-yaml"),
        ("name: rl\nx: \x07\n", "2:4 not-text control"),
        ("name: rl\n\tx: y\n", "2:1 not-yaml tab"),
        (b"name: rl\nx: \xff\n", "2:1 not-text UTF-8"),
        ("name: rl\n".encode("utf-16"), "1:1 not-text UTF-8"),
        (b"\x7fELF\x02\x01\x00\xff", "1:1 not-text UTF-8"),
        ("a: &a [*a]\n", "1:8 too-deep alias"),
        ("a: *b\n", "1:4 not-yaml alias"),
        ("[" * 5000, "1:62 too-deep 60"),
        ("- " * 5000, "1:123 too-deep 60"),
    ],
)
def test_text_that_is_not_yaml_is_refused_with_its_position(jobgen, text, expected):
    result = jobgen("validate", "-", stdin=text)
    line, count = result.stderr.removeprefix("<stdin>:").splitlines()
    position, code, *words = expected.split()
    assert (result.exit_code, brief(line), count) == (1, f"{position} {code}", "1 error in 1 file")
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "document is empty"),
        ("---\n---\nname: a\n", "first document is empty"),
        ("- a\n", "a list"),
        ("name: foo\n---\nname: a\nrun: echo a\n", "one after another"),
        ("name: a\nrun: echo\n", "single task"),
        ("name: a\nexecution: parallel\n", "no task"),
        ("name: a\n", "every further document is a task"),
        ("name: a\nrun: x\n---\nname: b\nrun: y\n", "`name` and `execution: parallel`"),
        ("name: v\ntype: k8s-pvc\nsize: 10Gi\n", "PersistentVolumeClaim"),
        ("service: {readiness_probe: /}\nrun: x\n", "SkyPilot service"),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\n",
            "apply it with `kubectl apply -f`",
        ),
        ("name: x\ntasks: {}\nschemaVersion: 1\n", "values of the chart job-group"),
    ],
)
def test_other_files_are_recognized(errors, text, what):
    (line,) = errors(text)
    assert brief(line).endswith(" $ not-a-group") and what in line
