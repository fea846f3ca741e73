"""The collectives check notices a wrong element and a world that broke."""

import pytest
from processes import FAULTS, environment

from gpuworker.accept.checks import collectives
from gpuworker.accept.registry import Plan

pytestmark = pytest.mark.slow


@pytest.fixture
def fault(monkeypatch):
    """Breaks rank 1 of every world that is started from here."""

    def begin(name: str) -> None:
        source = environment()["PYTHONPATH"]
        for key, value in environment(PYTHONPATH=f"{FAULTS}:{source}", FAULT=name).items():
            monkeypatch.setenv(key, value)

    return begin


def test_collectives_notice_one_wrong_element(fault, tmp_path, capfd):
    fault("flip")
    found = collectives.measure(Plan("cpu", 0, scratch=tmp_path))
    assert found.wrong == ["all-reduce gave wrong sums in 5 of 5 rounds"]
    printed = capfd.readouterr()
    assert "exitcode  : 3" in printed.err
    assert printed.out.count("ok=false") == 2, "every rank must know of the wrong one"


def test_collectives_of_a_world_that_broke_are_no_pass(fault, tmp_path):
    fault("crash")
    found = collectives.measure(Plan("cpu", 0, scratch=tmp_path))
    (missing,) = found.missing
    assert missing.startswith("torchrun exited 1: ")
    assert "exitcode: 9" in missing
