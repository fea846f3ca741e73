"""A check that does not come to its end is a finding, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import alive, until

from gpuworker.accept.checks import CHECKS, Plan
from gpuworker.accept.node import run_check
from gpuworker.accept.report import Check

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
PLAN = Plan("cpu", 0)


def fails(_):
    raise ValueError("no such dtype")


def hangs(_):
    time.sleep(600)


def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def unsendable(_):
    return Check("compute", "PASS", facts={"x": lambda: 1})


@pytest.fixture
def run(monkeypatch):
    def run(check, timeout_s: float = 60) -> Check:
        monkeypatch.setitem(CHECKS, "compute", check)
        return run_check("compute", PLAN, timeout_s)

    return run


def test_a_check_that_ends_is_what_it_found(run):
    found = run(lambda plan: Check("compute", "PASS", facts={"device": plan.device}))
    assert (found.verdict, found.facts) == ("PASS", {"device": "cpu"})
    assert 0 < found.duration_s < 60


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (fails, "ValueError: no such dtype"),
        (killed, "the check ended with signal 9"),
        (lambda _: sys.exit(5), "the check ended with exit code 5"),
        (lambda _: os._exit(0), "the check ended with exit code 0"),
        (unsendable, "the check ended with exit code 1"),
    ],
    ids=["raises", "killed", "exits", "exits with 0", "result lost"],
)
def test_a_check_that_breaks_is_incomplete(run, check, reason):
    found = run(check)
    assert (found.name, found.verdict, found.reason) == ("compute", "INCOMPLETE", reason)


def test_a_check_that_hangs_is_incomplete_in_time(run):
    start = time.monotonic()
    found = run(hangs, timeout_s=0.5)
    assert (found.verdict, found.reason) == ("INCOMPLETE", "not done after 0.5 s")
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("then", [hangs, killed, lambda _: Check("compute", "PASS")], ids=["hangs", "killed", "ends"])
def test_what_a_check_started_ends_with_it(run, tmp_path, then):
    """A torchrun that outlives its check would disturb the measurements of the next one."""

    def check(plan):
        program = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(program.pid))
        return then(plan)

    run(check, timeout_s=2)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "the program that the check started is gone", 30)
