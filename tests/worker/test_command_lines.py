"""Programs work when the output takes ASCII only, and without docstrings and asserts (python -OO)."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuworker.fleet import cli
from tests.helpers.fleet_reports import complete_report
from tests.helpers.launchers import Run
from tests.helpers.processes import SOURCE

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
ALONE = {"train.py"}  # it needs nothing of the package, so it escapes its output itself


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((SOURCE / "gpuworker").rglob("*.py")):
        yield path, ast.parse(path.read_text())


def called(tree: ast.AST) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_every_program_escapes_what_its_output_cannot_encode():
    programs = [
        (path, tree) for path, tree in trees() if '__name__ == "__main__"' in path.read_text()
    ]
    assert len(programs) >= 8
    missing = [
        path.name
        for path, tree in programs
        if "escape_output" not in called(tree) and path.name not in ALONE
    ]
    assert missing == []


def test_nothing_relies_on_docstrings_or_asserts():
    found = [
        f"{path.name}:{node.lineno}" for path, tree in trees() for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Attribute) and getattr(node.value, "id", getattr(node.value, "attr", "")) == "__doc__")
    ]  # fmt: skip
    assert found == []


def test_log_lines_reach_an_output_in_ascii(start):
    run = start(
        "-c", "from gpuworker.runtime.log import log; log('X', a='\\u2026 \\u2192')", **ASCII
    )
    assert run.wait() == 0 and r"\u2026 \u2192" in run.output


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-32", "cp037", "utf-7", "utf-8-sig", "idna", "latin-1"]
)
def test_an_output_in_any_encoding_is_readable(start, encoding):
    program = "from gpuworker.runtime.command_line import escape_output; escape_output(); print('[X] a=b+c \u20ac')"
    run = start("-c", program, PYTHONIOENCODING=encoding)
    assert run.wait() == 0, run.output
    assert run.stdout.read_bytes() == (
        b"[X] a=b+c \\u20ac\n" if encoding == "latin-1" else b"[X] a=b+c \xe2\x82\xac\n"
    )


@pytest.mark.parametrize("module", ["fleet.cli", "group.agent", "launch.launcher"])
def test_programs_print_text_whatever_the_variable_of_the_encoding_is(start, module):
    run = start("-m", f"gpuworker.{module}", "--help", PYTHONIOENCODING="utf-16")
    assert run.wait() == 0 and run.stdout.read_bytes().startswith(b"usage: "), run.output


def test_a_launcher_and_its_torchrun_understand_each_other_in_any_encoding(start, tmp_path):
    run = Run(start, tmp_path)
    run.pod(0, 1, PYTHONIOENCODING="utf-16")
    assert run.wait() == [0] and "[DONE] node=0" in run.output, run.output


@pytest.mark.parametrize("options", [[], ["-OO"]], ids=["ascii", "ascii, -OO"])
def test_reports_are_merged_in_ascii(start, tmp_path, options):
    (tmp_path / "n1.json").write_text(
        json.dumps(complete_report("n1")).replace("TFLOP/s", "TFLOP·s⁻¹")
    )
    for arguments, code in (
        (["--help"], 0),
        (["merge", "--help"], 0),
        (["merge", tmp_path / "n1.json"], 3),
    ):
        run = start(*options, "-m", cli.__name__, *arguments, **ASCII)
        assert run.wait() == code and "Traceback" not in run.output, run.output


@pytest.mark.slow
def test_a_node_is_tested_in_ascii_without_docstrings(start, tmp_path):
    run = start(
        "-OO", "-m", "gpuworker.accept.accept_node", "--device", "cpu", "--check", "repeatability", "--check",
        "storage", "--report-dir", tmp_path, **ASCII,
    )  # fmt: skip
    assert run.wait() == 0, run.output
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "PASS"
