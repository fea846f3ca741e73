"""Xids during the checks are found by events of NVML, and their absence is known or a warning."""

import sys

import pytest

from gpuworker.accept import fabric, watches
from gpuworker.accept.watches import XidWatch
from gpuworker.judgement.report import Report, Requested
from tests.helpers.pynvml_stand_in import Library

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def no_kernel_log(monkeypatch, tmp_path):
    monkeypatch.setattr(watches, "KERNEL_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(fabric, "SYS", tmp_path)


def empty_report(device: str) -> Report:
    return Report("n", "p", "1", Requested(device, 0, "quick"), "2026-01-05T10:00:00+00:00")


def watched(monkeypatch, *gpus: dict, events: int = -1, driver: bool = True):
    monkeypatch.setitem(sys.modules, "pynvml", Library(*gpus, driver=driver))
    watch = XidWatch()
    for _ in range(events + 1):  # and that it begins
        assert watch.receiver.poll(60)
        watch.said.append(watch.receiver.recv())
    return watch.stop()


def test_a_healthy_node_has_no_finding(monkeypatch):
    assert watched(monkeypatch, {}, {}).problems == []


def test_an_xid_names_gpu_and_code(monkeypatch):
    check = watched(monkeypatch, {"xids": [31]}, {"xids": [79, 79]}, events=3)
    assert sorted((problem.verdict, problem.reason) for problem in check.problems) == [
        ("FAIL", "GPU-00000000-0000-0000-0000-000000000001: Xid 79 during the checks"),
        ("WARN", "GPU-00000000-0000-0000-0000-000000000000: Xid 31 during the checks"),
    ]


@pytest.mark.parametrize("gpu", [{"events": None}, {"lost": True}])
def test_without_events_the_xids_are_unknown_unless_the_log_can_be_read(monkeypatch, tmp_path, gpu):
    check = watched(monkeypatch, {}, gpu)
    assert (check.name, {problem.verdict for problem in check.problems}) == ("xids", {"WARN"})
    assert [problem.kind for problem in check.problems] == ["unreadable"]
    (tmp_path / "kmsg").write_text("")
    assert watched(monkeypatch, {}, gpu).problems == []


def test_the_report_gets_the_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Library({"events": None}))
    report = empty_report("cuda")
    with pytest.raises(KeyError), watches.watch(report):
        raise KeyError
    assert [check.name for check in report.checks] == ["xids"]
    report = empty_report("cpu")
    with watches.watch(report):
        pass
    assert report.checks == []
