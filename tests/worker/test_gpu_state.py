"""The fabric of GPUs and the programs that share them, by the stand-in for NVML and lines of the
kernel's log.
"""

from __future__ import annotations

import dataclasses
import os

import pytest

from gpuworker.accept import host_info
from gpuworker.accept.checks import environment
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.kinds import CONFIGURE, REBOOT, RETEST, TICKET
from gpuworker.judgement.verdict import Check
from gpuworker.runtime import gpu_inventory
from tests.helpers import gpu_node
from tests.helpers.cpu_worlds import verdict_on
from tests.helpers.evidence import verbs

HEALTHY_FABRIC = (3, 0, 0, 0b10_10_10_10 | 1 << 8)  # completed; all parts of the mask are false


@pytest.fixture
def found(monkeypatch):
    def run(*gpus: dict) -> Check:
        gpu_node.install(monkeypatch, *gpus)
        plan = Plan("cuda", len(gpus))
        check = verdict_on(environment, environment.measure(plan), plan)
        return check

    return run


def test_a_healthy_fabric_and_a_gpu_without_one_have_no_finding(found):
    gpu = {"fabric": HEALTHY_FABRIC}
    assert found(gpu, gpu).verdict == "PASS"
    assert found({"fabric": (0, 0, 0, 0)}, {"fabric": None}).verdict == "PASS"


@pytest.mark.parametrize(
    ("fabric", "verdict", "words", "verb"),
    [
        ((1, 0, 0, 0), "WARN", "has not begun: is the fabric manager running", REBOOT),
        ((2, 0, 0, 0), "WARN", "is in progress", REBOOT),
        ((3, 999, 0, 0), "FAIL", "ended with error 999", REBOOT),
        ((3, 0, 0, 1), "FAIL", "the bandwidth of its fabric is degraded", TICKET),
        ((3, 0, 0, 1 << 2), "WARN", "a route of its fabric is being recovered", TICKET),
        ((3, 0, 0, 1 << 4), "FAIL", "a route of its fabric is unhealthy", TICKET),
        ((3, 0, 0, 1 << 6), "WARN", "recovers from access time-outs", TICKET),
        ((3, 0, 0, 5 << 8), "FAIL", "the fabric manager found too few NVLinks", REBOOT),
    ],
)
def test_a_fault_of_the_fabric_is_named_with_an_act(found, fabric, verdict, words, verb):
    check = found({"fabric": HEALTHY_FABRIC}, {"fabric": fabric})
    seen, reason = check.verdict, check.reason
    assert seen == verdict and "cuda:1: " in reason and words in reason
    assert verb in verbs(check)


def test_gpus_of_different_cliques_are_named(found):
    check = found({"fabric": HEALTHY_FABRIC}, {"fabric": (3, 0, 7, 0)})
    verdict, reason = check.verdict, check.reason
    assert verdict == "WARN" and "the GPUs differ in fabric clique" in reason


@pytest.mark.parametrize(
    ("gpu", "words", "verb"),
    [
        (
            {"processes": ((4711, "/usr/bin/trainer"),)},
            "another program uses it: /usr/bin/trainer (process 4711)",
            RETEST,
        ),
        ({"processes": ((4711, None),)}, "a program of another container (process 4711)", RETEST),
        ({"used": 9 << 30}, "another program uses 9.0 GiB of its memory", RETEST),
        ({"busy": 80}, "busy for 80 % of the time", RETEST),
        ({"compute_mode": 2}, "compute mode prohibits", CONFIGURE),
    ],
)
def test_programs_that_share_a_gpu_are_named(found, gpu, words, verb):
    check = found({}, gpu)
    verdict, reason = check.verdict, check.reason
    assert verdict == "WARN" and words in reason
    assert verb in verbs(check)


def test_this_program_is_not_another_one(found):
    assert (
        found({"processes": ((os.getpid(), "python3"), (os.getppid(), "python3"))}, {}).verdict
        == "PASS"
    )


def test_errors_of_nvlink_5_are_read_from_its_fields(monkeypatch):
    gpu_node.install(monkeypatch, {"link_errors": None, "link_fields": 3}, {"link_errors": None})
    assert [gpu.nvlink_errors for gpu in gpu_inventory.inventory()[1]] == [54, None]


@pytest.mark.parametrize(
    ("text", "age_s", "verdict"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", 60, "FAIL"),
        ("20034, Fatal, Link 30 LTSSM Fault Up", 86400, "WARN"),
        ("28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)", 60, "WARN"),
    ],
)
def test_an_error_of_an_nvswitch_is_named(found, monkeypatch, text, age_s, verdict):
    line = f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {text}"
    event = host_info.xid(line, age_s)
    assert dataclasses.asdict(event)["kind"] == "SXid"
    install = gpu_node.install

    def with_event(patch, *gpus):
        install(patch, *gpus)
        patch.setattr(host_info, "xids", lambda log: [event])

    monkeypatch.setattr(gpu_node, "install", with_event)
    check = found({}, {})
    seen, reason = check.verdict, check.reason
    assert seen == verdict and f"SXid {text.split(',')[0]} of 0000:c1:00.0" in reason
    assert TICKET in verbs(check)
