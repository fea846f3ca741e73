"""A check that does not come to its end is a finding, and leaves nothing running."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpuworker.accept import check_process
from gpuworker.accept.check_process import Stuck
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.report import Evidence
from tests.helpers.evidence import not_measured
from tests.helpers.processes import alive, until

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this
# one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
PLAN = Plan("cpu", 0, seconds=1)


def fails(_):
    raise ValueError("no such dtype")


def hangs(_):
    time.sleep(600)


def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def not_json(_):
    return Evidence(facts={"x": lambda: 1})


def run(measure, timeout_s: float = 60) -> tuple[Evidence, float]:
    return check_process.run(registered("compute", measure), PLAN, timeout_s)


def registered(name: str, measure) -> Spec:
    return Spec("COMPUTE", {}, name=name, proves="what it proves", measure=measure)


def test_a_check_that_ends_is_what_it_found():
    found, duration_s = run(
        lambda plan: Evidence(facts={"device": plan.device, "scratch": plan.scratch.is_dir()})
    )
    assert (not_measured(found), found.facts) == ([], {"device": "cpu", "scratch": True})
    assert 0 < duration_s < 60


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (fails, "ValueError: no such dtype"),
        (killed, "the check ended with signal 9"),
        (lambda _: sys.exit(5), "the check ended with exit code 5"),
        (lambda _: os._exit(0), "the check ended with exit code 0"),
        (not_json, "TypeError: Object of type function is not JSON serializable"),
        (
            lambda _: {"measurements": []},
            "TypeError: asdict() should be called on dataclass instances",
        ),
    ],
    ids=["raises", "killed", "exits", "exits with 0", "no JSON", "no evidence"],
)
def test_a_check_that_breaks_is_incomplete(check, reason):
    assert not_measured(run(check)[0]) == [reason]


def test_a_check_that_hangs_is_incomplete_in_time():
    start = time.monotonic()
    assert not_measured(run(hangs, timeout_s=0.5)[0]) == ["not done after 0.5 s"]
    assert time.monotonic() - start < 30


@pytest.fixture
def driver_hangs(monkeypatch):
    """SIGKILL has no effect, as on a process that waits in the kernel for a driver."""
    kill = os.kill
    monkeypatch.setattr("gpuworker.accept.check_process.KILL_S", 0.2)
    monkeypatch.setattr("os.killpg", lambda *_: None)
    monkeypatch.setattr("multiprocessing.process.BaseProcess.kill", lambda _: None)
    yield
    for child in multiprocessing.active_children():
        kill(child.pid, signal.SIGKILL)
        child.join()


@pytest.mark.parametrize(
    "check",
    [hangs, lambda plan: threading.Thread(target=hangs, args=(plan,)).start() or Evidence()],
)
def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(driver_hangs, check) -> None:
    start = time.monotonic()
    found, _ = run(check, timeout_s=0.5)
    assert isinstance(found, Stuck) and time.monotonic() - start < 20
    assert any("cannot be killed" in text for text in not_measured(found))


@pytest.mark.parametrize(
    "then", [hangs, killed, lambda _: Evidence()], ids=["hangs", "killed", "ends"]
)
def test_what_a_check_started_ends_with_it(tmp_path, then):
    """A torchrun that outlives its check would disturb the measurements of the next one."""

    def check(plan):
        program = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(program.pid))
        return then(plan)

    run(check, timeout_s=2)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "the program that the check started is gone", 30)


DRIVER_HANGS = """
import multiprocessing.process, os
from gpuworker.accept import accept_node, check_process
check_process.KILL_S = 5  # others must end by themselves, on a busy machine too
os.killpg = lambda *_: None
multiprocessing.process.BaseProcess.kill = lambda _: None
accept_node.main()
"""


def test_accept_node_writes_its_report_and_ends_although_the_driver_hangs(start, tmp_path) -> None:
    checks = ("--check", "environment", "--check", "compute")
    options = ("--inject", "hung-check", "--check-timeout", 10, "--report-dir", tmp_path)
    program = start("-c", DRIVER_HANGS, "--device", "cpu", *checks, *options)
    code = program.wait(120)
    first, second = json.loads((tmp_path / "report.json").read_text())["checks"]
    stuck = next(
        problem["reason"] for problem in first["problems"] if problem["kind"] == "driver-hangs"
    )
    os.kill(int(re.search(r"process (\d+) cannot be killed", stuck)[1]), signal.SIGKILL)
    assert (code, [problem["kind"] for problem in second["problems"]]) == (3, ["not-run"])
