"""The DDP correctness check: a bit that differs is found, and the rank that has it is named."""

import dataclasses

import pytest

from gpuworker.accept.checks import correctness as check
from gpuworker.accept.checks.correctness import ddp_reference
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.merge import merge
from gpuworker.judgement.report import FAIL, Report, Requested, to_json
from gpuworker.judgement.sources import Expected
from tests.helpers.cpu_worlds import measured
from tests.helpers.evidence import failures

RIGHT = {
    "own_error": 1e-16,
    "reduced_error": 1e-16,
    "trained": "a",
    "straight": "b",
    "loaded": "a",
    "resumed": "b",
}

PLAN = Plan("cuda", 2)


def results(*changes: dict) -> list[dict]:
    return [{"label": f"rank {rank}", **RIGHT, **change} for rank, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"own_error": 1e-3},
            "rank 1: its own gradient, before any communication, differs from the reference by 0.001",
        ),
        (
            {"reduced_error": float("nan")},
            "rank 1: the averaged gradient differs from that of one process by nan",
        ),
        (
            {"trained": "c", "loaded": "c"},
            "rank 1: parameters differ after training from those of all others",
        ),
        ({"loaded": "c"}, "rank 1: the checkpoint that it read is not the one that it wrote"),
        (
            {"resumed": "c"},
            "rank 1: training resumed from the checkpoint ends with other parameters",
        ),
    ],
)
def test_the_rank_is_named(change, reason):
    (found,) = failures(ddp_reference.evidence(results({}, change, {}), PLAN, 1))
    assert found.startswith(reason)


@pytest.mark.parametrize("error", [float("inf"), float("nan"), 1e300])
def test_a_gradient_that_is_not_finite_is_a_fail_that_the_fleet_can_read(error: float) -> None:
    found = ddp_reference.evidence(results({}, {"own_error": error}), PLAN, 1)
    found.name = "correctness"
    asked = Requested("cuda", 2, "quick")
    report = Report("n1", "p", "1", asked, "2026-01-05T10:00:00+00:00", [found])
    (source,) = from_text("n1", to_json(dataclasses.asdict(report), None).encode())
    fleet = merge([source], Expected(1))
    assert fleet.verdict == FAIL and ("own-gradient", "cuda:1") in {
        (f.kind, f.device) for f in fleet.findings
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", None),
        ("flipped-gradient", "rank 2 ("),
        ("nan-gradient", "rank 2 ("),
        ("diverged-parameter", "rank 2 ("),
        ("damaged-checkpoint", "rank 2 ("),
    ],
)
def test_ranks_that_really_train(tmp_path, monkeypatch, fault, reason):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = measured(check, Plan("cpu", 0, scratch=tmp_path, processes=3, inject=fault))
    assert bool(failures(found)) == bool(fault)
    assert not fault or failures(found)[0].startswith(reason)
    assert list(tmp_path.iterdir()) == [], "no checkpoint is left behind"
