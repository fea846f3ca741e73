"""The stragglers check names slow and late ranks, and no rank of a healthy world."""

import pytest

from gpuworker.accept.checks import stragglers as check
from gpuworker.judgement.check_spec import Plan
from tests.helpers.cpu_worlds import measured
from tests.helpers.evidence import failures

PLAN = Plan("cuda", 8)


def results(compute_s: list[float], wait_s: list[float], device: str = "cuda") -> list[dict]:
    """Three rounds of each rank."""
    return [
        {
            "label": f"rank {rank}",
            "device": device,
            "compute_s": [compute] * 3,
            "wait_s": [wait] * 3,
        }
        for rank, (compute, wait) in enumerate(zip(compute_s, wait_s, strict=True))
    ]


def test_a_slow_rank_is_named_once():
    """It is also the last to arrive; that is a consequence."""
    found = check.evidence(
        results([1.0, 1.01, 1.25, 0.99, 1.0, 1.0], [0.25, 0.24, 0.0, 0.26, 0.25, 0.25]), PLAN, 1
    )
    assert failures(found) == ["rank 2 is slow: 1.25e+03 ms for work that takes 1e+03 ms (1.25 x)"]


def test_a_late_rank_is_named_though_it_computes_as_fast():
    found = check.evidence(results([1.0] * 6, [0.5, 0.5, 0.5, 0.5, 0.0, 0.5]), PLAN, 1)
    assert failures(found) == [
        "rank 4 is late: the others wait 500 ms for it in every round, although it computes as fast as they do"
    ]


def test_differences_of_healthy_gpus_are_no_finding():
    found = check.evidence(
        results([1.0, 1.05, 0.97, 1.04, 1.02, 0.99, 1.0, 1.09], [0.01] * 8), PLAN, 1
    )
    assert failures(found) == []
    assert found.measurements[0].value == pytest.approx(1.09 / 1.01)


def test_a_rehearsal_forgives_a_busy_machine():
    """Others had the processor in most rounds, not in all; on GPUs that many would count."""
    for device, named in (("cpu", 0), ("cuda", 2)):
        busy = results([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], device)
        busy[1]["compute_s"][:2] = [2.0, 2.0]
        busy[2]["wait_s"][:2] = [0.0, 0.0]
        assert len(failures(check.evidence(busy, PLAN, 1))) == named


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("fault", ["", *check.SPEC.faults])
def test_ranks_that_really_run(tmp_path, monkeypatch, fault):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = measured(check, Plan("cpu", 0, scratch=tmp_path, inject=fault))
    words = {"": "", "slow-rank": " is slow: ", "late-rank": " is late: "}[fault]
    named = [
        reason for reason in failures(found) if reason.startswith("rank 1 (") and words in reason
    ]
    assert (len(named), failures(found)) == (1 if fault else 0, named)
