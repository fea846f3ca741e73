"""Every fault that a check claims to find is found and named, and a healthy node passes.

CLEAN_RUNS=200 pytest -k clean runs the whole quick level that often (once by default).
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from gpuworker.accept import accept_node, fault_injection
from gpuworker.judgement import registry
from gpuworker.judgement.judge import judge
from gpuworker.judgement.merge import merge
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import EXIT_CODES, Requested
from gpuworker.judgement.sources import Expected, Source

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

CHECKS = registry.node_checks()
FAULTS = fault_injection.known_faults(CHECKS)


@pytest.fixture
def accept(monkeypatch, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> tuple[int, Path, str]:
        folder = tmp_path / "reports"
        monkeypatch.setattr(
            sys,
            "argv",
            ["accept-node", "--device", "cpu", "--report-dir", str(folder), *map(str, arguments)],
        )
        with pytest.raises(SystemExit) as end:
            accept_node.main()
        return end.value.code, folder / "report.json", capsys.readouterr().out

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_found_and_named(accept, fault):
    patience_s = (
        2 if fault.id == "hung-check" else 300
    )  # others must end by themselves, on a busy machine too
    options = ("--check", fault.check or "environment", "--check-timeout", patience_s)
    code, report, said = accept("--inject", fault.id, *options)
    (result,) = re.findall(r"^\[RESULT\] .* verdict=(\w+) .*summary=(.*)$", said, re.MULTILINE)
    verdict, summary = result[0], json.loads(result[1])
    assert verdict != "PASS" and code == EXIT_CODES[verdict], summary
    if report.is_file():
        found = report_of(json.loads(report.read_text()))
        checks = judge(found, found.requested).checks
        assert fault.kind in {problem.kind for check in checks for problem in check.problems}, (
            summary
        )
    assert f"{fault.id} injected" in summary, "the summary marks the injected fault"
    if report.is_file():
        assert (verdict_of_erased(json.loads(report.read_text())) == "PASS") == (
            fault.id in WORDS_ONLY
        )


# Faults of which nothing but the words of their problem is in a report: no fact and no number
# differs.
WORDS_ONLY = {
    "corrupt-link", "damaged-checkpoint", "damaged-file", "diverged-parameter", "flipped-bit-memory",
    "flipped-bit-product", "flipped-bit-repeat", "late-rank", "lying-clock", "nan-product", "slow-rank",
    "wrong-element", "wrong-products", "wrong-version",
}  # fmt: skip


def verdict_of_erased(report: dict) -> str:
    """The fleet's verdict on a report from which somebody erased everything about the fault but
    facts and numbers.
    """
    report["requested"]["inject"] = ""
    for check in report["checks"]:
        check["problems"] = []
    names = tuple(check["name"] for check in report["checks"] if check["name"] in CHECKS)
    requested = Requested("cpu", 0, "quick", checks=names)
    return merge([Source("erased", report_of(report))], Expected(1, requested=requested)).verdict


@pytest.mark.parametrize("run", range(int(os.environ.get("CLEAN_RUNS", "1"))))
def test_a_clean_run_raises_no_alarm(accept, run):
    code, path, said = accept("--check-timeout", 300)
    report = json.loads(path.read_text())
    assert code == 0, said
    assert report["verdicts"] == {
        name: "PASS" for name, check in CHECKS.items() if "quick" in check.seconds
    }
