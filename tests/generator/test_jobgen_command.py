"""The command jobgen: streams, files, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import jobgen as package

GROUP = "name: rl\nexecution: parallel\n---\nname: t\nenvs: {SETTING: s3cret}\nrun: echo hi\n"


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run jobgen as a process, from the same sources."""
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "jobgen", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, timeout=60, **options)


def test_values_of_standard_input_go_to_standard_output():
    done = run_process("to-values", "--quiet", "-", input=GROUP.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert yaml.safe_load(done.stdout)["tasks"]["t"]["run"] == "echo hi"


def test_output_is_utf8_in_any_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    done = run_process("to-values", "-", input=GROUP.replace("hi", "größe 🎉").encode())
    assert "echo größe 🎉" in done.stdout.decode()


def test_same_input_gives_the_same_bytes(tmp_path, monkeypatch):
    (tmp_path / "group.yaml").write_text(GROUP)
    outputs = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        outputs.add(run_process("to-values", str(tmp_path / "group.yaml")).stdout)
        outputs.add(run_process("to-values", "-", input=GROUP.encode()).stdout)
    assert len(outputs) == 1


def test_a_terminal_as_standard_input_is_refused():
    if not hasattr(os, "openpty"):
        pytest.skip("no pseudo terminals on this system")
    ours, theirs = os.openpty()
    try:
        done = run_process("to-values", "-", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2 and b"a terminal" in done.stderr


def test_output_file_is_replaced_whole(jobgen, tmp_path):
    out = tmp_path / "values.yaml"
    result = jobgen("to-values", "--quiet", "-", "-o", out, stdin=GROUP)
    assert (result.exit_code, result.output) == (0, "")
    good = out.read_text()
    assert good == jobgen("to-values", "-", stdin=GROUP).stdout
    assert jobgen("to-values", "-", "-o", out, stdin="name: rl\n").exit_code == 1
    assert out.read_text() == good  # an error leaves the old file alone
    assert list(tmp_path.iterdir()) == [out]


def test_check_reports_a_difference(jobgen, tmp_path):
    out = tmp_path / "values.yaml"
    jobgen("to-values", "-", "-o", out, stdin=GROUP)
    same = jobgen("to-values", "-q", "-", "--check", out, stdin=GROUP)
    assert (same.exit_code, same.output) == (0, "")
    before = out.read_text()
    other = jobgen("to-values", "-q", "-", "--check", out, stdin=GROUP.replace("hi", "ho"))
    assert (other.exit_code, other.stdout, out.read_text()) == (1, "", before)
    assert f"{out} is out of date" in other.stderr and f"-o {out}" in other.stderr


def test_endless_input_is_too_large(jobgen):
    result = jobgen("validate", "/dev/zero")
    assert result.exit_code == 1 and "[too-large]" in result.stderr


WRONG_USAGE = """\
to-values
to-values no-such-file.yaml
validate .
to-values - --check no-such-file.yaml
to-values - -o no-such-folder/values.yaml
to-values - -o a --check b
to-values - --name My_Group
validate --format xml -
to-values - --env s3cret!
to-values - --env 1A=s3cret
schema values
no-such-command
"""


@pytest.mark.parametrize("arguments", WRONG_USAGE.splitlines())
def test_wrong_usage_and_unusable_files_exit_with_2(jobgen, arguments):
    result = jobgen(*arguments.split(), stdin=GROUP)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr and "s3cret" not in result.stderr and "Traceback" not in result.stderr


def test_a_bug_prints_one_line_without_the_input(jobgen, monkeypatch):
    def broken(source, options):
        raise KeyError(source.decode())

    monkeypatch.setattr("jobgen.api.to_values", broken)
    result = jobgen("to-values", "-", stdin=GROUP)
    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert (
        result.stderr.startswith("internal error: KeyError at ")
        and "please report" in result.stderr
    )
    assert "s3cret" not in result.stderr


def test_version_is_that_of_the_package(jobgen):
    assert jobgen("--version").stdout == f"jobgen, version {package.__version__}\n"
