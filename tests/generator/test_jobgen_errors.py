"""Errors: all in one run, each with its position, in a form that editors parse; and files that are not job groups."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jobgen as package
from hack.gen.diagnostic_codes import CODES
from jobgen.api import Options, to_values
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
    assert [line.split(": error[")[0] for line in lines] == ["1:7", "3:12", "7:3", "8:11", "10:12", "12:1", "14:10"]
    assert ']: task "trainer": $.resources.acclerators: ' in lines[2] and '"accelerators"?' in lines[2]
    assert "]: task 2: $: " in lines[5] and brief(lines[5]) == "12:1 $ missing-field"


def test_every_file_is_checked(jobgen, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("name: foo\n")
    result = jobgen("validate", tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert result.exit_code == 1
    *lines, count = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    assert count == "2 errors in 2 files"


def test_the_last_line_counts_each_severity(jobgen):
    text = f"{HEADER}name: t\nevent_callback: x\nresources: {{priority: 1, disk_tier: best}}\n"
    assert jobgen("validate", "-", stdin=text).stderr.splitlines()[-1] == "1 error, 2 notes in 1 file"
    assert jobgen("validate", "-q", "-", stdin=f"{HEADER}name: t\n").stderr == ""


@pytest.mark.parametrize("name", sorted(CODES))
def test_every_code_has_an_example(name, tmp_path):
    code = CODES[name]
    for path, size in code.files.items():
        if size is None:
            os.mkfifo(tmp_path / path)
        else:
            (tmp_path / path).write_bytes(b"x" * size)
    result = to_values(code.source.encode(), Options(folder=str(tmp_path)))
    found = [diagnostic for diagnostic in result.diagnostics if diagnostic.code == name]
    assert found
    assert (result.text is None) == any(diagnostic.severity == "error" for diagnostic in result.diagnostics)


def test_every_code_that_jobgen_uses_is_described():
    sources = "\n".join(
        path.read_text() for path in Path(package.__file__).parent.glob("*.py") if path.name != "diagnostic_codes.py"
    )
    sources = sources.replace('schema.get("x-code", ', "")  # from the schemas; not-a-group is one of the rest
    calls = re.findall(
        r'(?:report|InvalidInputError|RefusedError|error|note)\(\s*[\w.(){{}}* ]*,? ?"([a-z]+(?:-[a-z]+)+)"', sources
    )
    assert {"unknown-field", "not-yaml", "file-outside", "yaml-key"} <= set(calls) <= set(CODES)


def test_duplicate_keys_name_the_first_line(errors):
    lines = errors("name: rl\nexecution: parallel\n---\nname: t\nresources:\n  cpus: 1\n  cpus: 2\nname: u\n")
    assert list(map(brief, lines)) == ["7:3 $.resources.cpus duplicate-key", "8:1 $.name duplicate-key"]
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


@pytest.mark.parametrize("text", ["execution: a: b\n", "a: [\n", "a: 'x\n", "%YAML 9\n", "a: b\n c: d\n", "&a &b c"])
def test_a_syntax_error_prints_one_line(jobgen, text):
    result = jobgen("validate", "-", stdin=text)
    line, _ = result.stderr.splitlines()
    assert result.exit_code == 1 and "[not-yaml]: " in line


HOSTILE = {
    "bomb": "a: &a [x]\n"
    + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "text bomb": HEADER
    + "name: t\nenvs:\n  A: &a "
    + "x" * 1_000_000
    + "\n"
    + "".join(f"  B{i}: *a\n" for i in range(5000)),
    "many nodes": "[" + "a," * 1_900_000 + "]",
    "many keys": "".join(f"k{i}: {i}\n" for i in range(280_000)),
    "many documents": HEADER + "name: t\n---\n" * 300_000,
    "large": "#" * 100_000_000,
    "one line": HEADER + "name: t\nrun: " + "x" * 3_900_000,
    "unclosed": HEADER + "name: t\nrun: '" + "x\n" * 1_900_000,
    "many merges": HEADER + "name: t\nenvs: &e {A: x}\n" + "resources: {<<: [" + ", ".join(["*e"] * 100_000) + "]}\n",
    "unknown fields": HEADER + "name: t\n" + "".join(f"resource{i}: x\n" for i in range(20_000)),
    "long number": HEADER + "name: t\nenvs: {A: " + "9" * 1_000_000 + "}\n",
    "long time": HEADER + "name: t\nenvs: {A: 1" + ":59" * 1_000_000 + "}\n",
    "long address": HEADER + "name: t\nworkdir: {url: 'https://" + "a:" * 1_900_000 + "'}\n",
    "long paths": HEADER + "name: t\nvolumes: {/a: '" + "$" * 1_900_000 + "', '/a" + "/.." * 600_000 + "': b}\n",
    "many variables": HEADER + "name: t\nenvs: {A: " + "x" * 1_900_000 + "}\nvolumes: {" + "$A" * 900_000 + ": b}\n",
    "many unknown variables": HEADER + "name: t\nvolumes: {/a: " + "$A" * 1_900_000 + "}\n",
    "long octal": HEADER + "name: t\nenvs: {A: 0" + "7" * 1_000_000 + "x}\n",
    "many unknown tasks": "name: rl\nexecution: parallel\nprimary_tasks: ["
    + "x, " * 50_000
    + "]\n---\n"
    + "---\n".join(f"name: t{number}\n" for number in range(5_000)),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_input_ends_soon(name, tmp_path, monkeypatch):
    """In a separate process, within 500 MB and 10 s of CPU time, however long others keep it waiting."""
    (tmp_path / "group.yaml").write_text(HOSTILE[name])
    monkeypatch.setenv("PYTHONPATH", str(Path(package.__file__).parents[1]))
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9))\n"
    limited += "from jobgen.cli import cli\ntry: cli(['to-values', 'group.yaml', '-o', '/dev/null'])\n"
    limited += "finally:\n used = resource.getrusage(resource.RUSAGE_SELF)\n"
    limited += " peak = open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]\n"
    limited += " sys.stderr.write(f'\\nused {used.ru_utime + used.ru_stime} {peak}')\n"
    done = subprocess.run([sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr[-500:]
    assert "Traceback" not in done.stderr
    seconds, kilobytes = done.stderr.rpartition("used ")[2].split()
    assert int(kilobytes) < 500_000
    # CPU time: 2 s on an idle machine, and twice that where other work shares its cores and caches. Quadratic time
    # would be minutes.
    assert float(seconds) < 10, seconds


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "document is empty"),
        ("# nothing\n---\n", "document is empty"),
        ("---\n---\nname: a\n", "first document is empty"),
        ("- a\n", "a list"),
        ("hello\n", "plain text"),
        ("name: foo\n---\nname: a\nrun: echo a\n", "one after another"),
        ("name: foo\nexecution: serial\n---\nname: a\n", "one after another"),
        ("name: a\nrun: echo\n", "single task"),
        ("name: a\nexecution: parallel\n", "no task"),
        ("name: a\nexecution: parallel\n---\n---\n", "no task"),
        ("name: a\n", "every further document is a task"),
        ("name: a\nrun: x\n---\nname: b\nrun: y\n", "`name` and `execution: parallel`"),
        ("name: v\ntype: k8s-pvc\nsize: 10Gi\n", "PersistentVolumeClaim"),
        ("service: {readiness_probe: /}\nrun: x\n", "SkyPilot service"),
        ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\n", "apply it with `kubectl apply -f`"),
        ("name: x\ntasks: {}\nschemaVersion: 1\n", "values of the chart job-group"),
    ],
)
def test_other_files_are_recognized(errors, text, what):
    (line,) = errors(text)
    assert brief(line).endswith(" $ not-a-group") and what in line


def test_another_execution_is_not_a_group(errors):
    (line,) = errors("name: rl\nexecution: paralel\n---\nname: t\n")
    assert brief(line) == "2:12 $.execution not-a-group" and '"paralel"' in line


def test_a_document_must_be_a_mapping(errors):
    (line,) = errors("name: rl\nexecution: parallel\n---\n- a\n---\nname: t\n")
    assert brief(line) == "4:1 $ wrong-type" and "task 1" in line
