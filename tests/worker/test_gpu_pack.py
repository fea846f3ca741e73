"""The GPU pack (make gpu): limits, resumption, what a fault leaves behind, and a slice of its dry
run on the CPU.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworker.judgement.judge import Judged
from gpuworker.judgement.report import Problem, Report, Requested
from gpuworker.judgement.verdict import Check
from hack.gpu import judges, steps
from hack.gpu.step import NOT_APPLICABLE, NOT_OK, OK, Result, read
from hack.paths import REPO
from tests.helpers.processes import alive, until

# A pack of the steps that a test writes, in a process of its own: the runner adopts what a step
# leaves.
DRIVER = """
import sys, time
sys.path[:0] = {paths!r}
from pathlib import Path
from hack.gpu import runner
from hack.gpu.step import *

def judge(folder, code):
    return Judgement(OK if code == 0 else NOT_OK, runner.last_line(folder))

def broken(folder, code):
    return judge(folder, Path(folder, "report.json").read_text())

runner.TERM_S = 0.5
steps = [{steps}]
settings = runner.Settings(Path({out!r}), sys.executable, time.monotonic() + {seconds})
runner.run(steps, settings, lambda known: None)
print("the pack ended", flush=True)
"""


@pytest.fixture
def pack(tmp_path):
    def run(*written: str, seconds: float = 300) -> dict[str, Result]:
        paths = [str(REPO), str(REPO / "worker/src")]
        text = DRIVER.format(
            paths=paths, steps=", ".join(written), out=str(tmp_path), seconds=seconds
        )
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=120)
        assert b"the pack ended" in done.stdout, done.stderr.decode(errors="replace")
        return {folder.name: found for folder in tmp_path.iterdir() if (found := read(folder))}

    return run


def a_step(
    name: str, program: str, seconds: float = 60, judge: str = "judge", alone: bool = True
) -> str:
    return f"Step({name!r}, ('-c', {program!r}), {judge}, {seconds}, alone={alone})"


def test_a_step_has_its_exit_code_and_its_log_and_is_not_repeated(pack, tmp_path):
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    good, bad = (
        a_step("good", f"{count}; print('done')"),
        a_step("bad", f"{count}; raise SystemExit(3)"),
    )
    found = pack(good, bad)
    assert (found["good"].result, found["good"].exit_code, found["good"].why) == (OK, 0, "done")
    assert (found["bad"].result, found["bad"].exit_code) == (NOT_OK, 3)
    assert pack(good, bad) == found
    assert (tmp_path / "count").read_text() == "xx", "a step with a result does not run again"
    (tmp_path / "bad" / "result.json").write_text("{")  # the pack was killed while it wrote
    assert pack(good, bad)["bad"].exit_code == 3
    assert (tmp_path / "count").read_text() == "xxx"


def test_a_step_that_hangs_ends_at_its_limit_with_all_that_it_started(pack, tmp_path):
    hang = (
        "import os, signal, subprocess, sys, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "left = subprocess.Popen(['sleep', '3600'], start_new_session=True);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(left.pid)); time.sleep(3600)"
    )
    found = pack(
        a_step("hang", hang, seconds=-10.0), a_step("next", "print('runs')")
    )  # a limit of 6 s
    assert (found["hang"].result, found["hang"].timed_out, found["hang"].exit_code) == (
        NOT_OK,
        True,
        -9,
    )
    assert found["next"].result == OK
    assert not alive(int((tmp_path / "pid").read_text()))


def test_sigterm_ends_the_running_step(start, tmp_path):
    program = start("-m", "hack.gpu", "--device", "cpu", "--out", tmp_path, "--only", "fault-hung-check",
                    PYTHONPATH=f"{REPO}:{REPO / 'worker/src'}")  # fmt: skip
    log = tmp_path / "fault-hung-check" / "log"
    until(lambda: log.exists() or program.process.poll() is not None, "the step starts")
    program.process.send_signal(signal.SIGTERM)
    assert program.wait() == 143, program.output
    assert not (tmp_path / "fault-hung-check" / "result.json").exists()


@pytest.mark.slow
def test_a_slice_of_the_dry_run_ends_with_a_summary_and_continues(start, tmp_path):
    """One fault; all steps: make gpu DEVICE=cpu."""
    names = ("fault-missing-gpu",)
    options = ("-m", "hack.gpu", "--device", "cpu", "--out", tmp_path, "--only")
    program = start(*options, *names, PYTHONPATH=f"{REPO}:{REPO / 'worker/src'}")
    assert program.wait() == 0, program.output
    whole = json.loads((tmp_path / "summary.json").read_text())
    assert [(each["name"], each["result"], each["exit_code"]) for each in whole["steps"]] == [
        ("fault-missing-gpu", OK, 1),
    ]  # fmt: skip
    page = (tmp_path / "summary.md").read_text()
    assert "| fault-missing-gpu | ok | 1 |" in page

    again = start(*options, *names, PYTHONPATH=f"{REPO}:{REPO / 'worker/src'}")
    assert again.wait() == 0
    assert json.loads((tmp_path / "summary.json").read_text()) == whole, "no step ran again"


def test_each_part_fits_seven_minutes_of_one_gpu():
    for part in (steps.first_part("cuda", 1), steps.second_part("cuda", 1)):
        assert sum(step.seconds for step in part) <= 420
    found = steps.steps("cuda", 1)
    assert max(step.limit_s for step in found) < 700, (
        "a command of the machine may end after ten minutes"
    )
    assert len({step.name for step in found}) == len(found)


def test_every_fault_of_a_node_has_a_step():
    from gpuworker.accept import fault_injection
    from gpuworker.judgement import registry

    faults = {f"fault-{fault.id}" for fault in fault_injection.known_faults(registry.node_checks())}
    assert faults <= {step.name for step in steps.steps("cuda", 8)}
    assert {step.name for step in steps.steps("cuda", 1)} < {
        step.name for step in steps.steps("cuda", 8)
    }


def left(folder: Path, log: str = "", report: dict | None = None) -> Path:
    (folder / "log").write_text(log)
    if report:
        (folder / "report.json").write_text(json.dumps(report))
    return folder


@pytest.mark.parametrize(
    ("verdict", "text", "check_verdict", "named", "result"),
    [
        ("FAIL", "compute: cuda:0 is slow: gemm_bf16", "FAIL", True, OK),
        ("FAIL", "compute: cuda:0: gemm_bf16 is below the limit", "FAIL", True, NOT_OK),
        ("FAIL", "compute: cuda:0: gemm_bf16 is below the limit", "FAIL", False, OK),
        ("PASS", "cuda:0 is slow: gemm_bf16", "PASS", False, NOT_OK),
        ("INCOMPLETE", "compute: RuntimeError", "INCOMPLETE", False, NOT_OK),
        ("INCOMPLETE", "one process has no peer", "SKIP", False, NOT_APPLICABLE),
    ],
)
def test_a_fault_counts_as_found_if_the_verdict_names_it(
    monkeypatch, tmp_path, verdict, text, check_verdict, named, result
):
    log = f"[ENV] a=1\n[RESULT] verdict={verdict} report=x summary={json.dumps(text)}\n"
    problems = [Problem("FAIL", "slow", text)] if "is slow" in text else []
    report = Report("n", "p", "1", Requested("cuda", 1, "quick"), "2026-01-05T10:00:00+00:00")
    judged = Judged(report, [Check("compute", check_verdict, problems=problems)])
    monkeypatch.setattr(judges, "judged_report", lambda folder: judged)
    judge = judges.found("compute", "slow", named)
    assert judge(left(tmp_path, log, dataclasses.asdict(report)), 1).result == result
