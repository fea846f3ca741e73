"""Causes of several findings: less power, what all GPUs of a node share; and no grave act without a
failure.
"""

from __future__ import annotations

import pytest

from gpuworker.judgement.kinds import CONFIGURE, RESEAT, RESET, RETEST, RMA, TICKET
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN
from tests.helpers.fleet_reports import H100, measurement, merged, node_report, problem
from tests.worker.test_fleet_suspects import BAD, GPUS, parts, with_problems


def capped(report: dict, limits: dict[int, float], default: float | None = None) -> dict:
    """The report with these power limits, 700 W for the other GPUs, in the facts of the environment
    check.
    """
    for index, gpu in enumerate(report["checks"][0]["facts"]["gpus"]):
        gpu |= {"name": H100, "power_limit_w": limits.get(index, 700.0), "power_default_w": default}
    return report


SLOW = "{} is slow: gemm_bf16 500 TFLOP/s is 70% of the median of its peers"


def test_a_gpu_with_less_power_than_its_peers_gets_its_limit_back() -> None:
    """And is neither reseated nor replaced. The driver need not know a default limit."""
    bad = capped(with_problems("n1", "compute", (FAIL, "slow", SLOW.format("cuda:1"))), {1: 450.0})
    fleet = merged(bad, capped(with_problems("n2", "compute"), {}))
    (suspect,) = [each for each in fleet.suspects if each.device]
    assert (suspect.verdict, suspect.device, suspect.act) == (FAIL, "cuda:1", CONFIGURE)
    assert (
        "450 W" in suspect.why
        and "700 W" in suspect.why
        and "Set the power limit back" in suspect.advice
    )
    assert len(suspect.reasons) == 2


def test_what_the_node_finds_about_the_same_cause_is_no_other_suspect() -> None:
    words = "node: all_reduce_busbw 330 GB/s is below the warning limit of 342"
    for limits, part in (({1: 450.0}, "cuda:1"), (dict.fromkeys(range(GPUS), 450.0), "all 8 GPUs")):
        slow = problem(WARN, "limit", words, measure="all_reduce_busbw", value=330.0)
        bad = capped(with_problems("n1", "collectives"), limits)
        bad["checks"][-1] |= {"verdict": FAIL, "reason": "see problems", "problems": [slow]}
        bad |= {"verdict": FAIL, "reason": "collectives: see problems"}
        fleet = merged(
            bad, *(capped(with_problems(f"n{index}", "collectives"), {}) for index in (2, 3))
        )
        assert parts(fleet) == [("n1", part, CONFIGURE)]


def test_a_fault_that_less_power_does_not_explain_keeps_its_act() -> None:
    for kind, act in (("wrong-product", RMA), ("reset-needed", RESET)):
        fault = (FAIL, kind, f"cuda:1: {kind}")
        report = capped(
            with_problems("n1", "compute", fault, (FAIL, "slow", SLOW.format("cuda:1"))), {1: 450.0}
        )
        assert ("n1", "cuda:1", act) in parts(merged(report))


def test_power_limits_are_compared_within_a_model() -> None:
    reports = [
        capped(with_problems(f"n{index}", "compute"), dict.fromkeys(range(GPUS), 500.0))
        for index in (1, 2)
    ]
    assert merged(*reports).suspects == [], "all GPUs of the fleet have it"
    for gpu in reports[1]["checks"][0]["facts"]["gpus"]:
        gpu |= {"name": "another", "power_limit_w": 300.0}
    assert merged(*reports).suspects == []
    for damaged in (None, "700", True, -1, float("inf"), 10**400):
        reports[0]["checks"][0]["facts"]["gpus"][0]["power_limit_w"] = damaged
        assert merged(*reports).suspects == []


@pytest.mark.parametrize(
    ("check", "kind", "reason", "act"),
    [
        ("links", "pcie", "{}: PCIe ran ×8 wide under load, GPU and slot can do ×16", TICKET),
        ("compute", "limit", "{}: gemm_bf16 500 TFLOP/s is below the limit of 620 (H100)", TICKET),
        ("repeatability", "wrong-product", "{}: integer arithmetic gave a wrong result", TICKET),
        (
            "environment",
            "reset-needed",
            "{}: bad pages of its memory are not yet retired: reset the GPU",
            RESET,
        ),
    ],
)
def test_what_all_gpus_of_a_node_have_is_one_suspect(
    check: str, kind: str, reason: str, act: str
) -> None:
    problems = [(FAIL, kind, reason.format(f"cuda:{index}")) for index in range(GPUS)]
    numbers = [measurement(1.0, f"cuda:{index}", "other", judged=False) for index in range(GPUS)]
    fleet = merged(
        with_problems("n1", check, *problems, measurements=numbers),
        node_report("n2", (100.0,) * GPUS),
    )
    assert parts(fleet) == [("n1", "all 8 GPUs", act)]
    (suspect,) = fleet.suspects
    assert (
        suspect.reasons == [suspect.why]
        and "cuda:0, cuda:1" in suspect.why
        and "cuda:7" in suspect.why
    )
    fleet = merged(with_problems("n1", check, *problems[1:], measurements=numbers))
    assert len(fleet.suspects) == GPUS - 1, "one GPU is well, so they share no cause"


def slow_links(
    pairs: list[tuple[int, int]], *problems: tuple[str, str], collectives: str = ""
) -> dict:
    """A node whose links between these GPUs are slow, with other problems, and with slow
    collectives.
    """
    names = [f"cuda:{a}→cuda:{b}" for a, b in pairs]
    texts = [
        (FAIL, "nvlink-down", f"{name}: link_peer 250 GB/s is below the limit of 333")
        for name in names
    ]
    numbers = [measurement(250.0, name, "link_peer", "GB/s") for name in names]
    numbers += [measurement(1.0, f"cuda:{index}", "other", judged=False) for index in range(GPUS)]
    report = with_problems("n1", "links", *texts, *problems, measurements=numbers)
    if collectives:
        text = f"node: all_reduce_busbw 240 GB/s is below the limit of 324 ({collectives})"
        other = with_problems("n1", "collectives", (FAIL, "limit", text))
        report["checks"].append(other["checks"][-1])
        report["verdict"] = FAIL
    return report


ALL = [(a, b) for a in range(GPUS) for b in range(GPUS) if a != b]


def test_the_links_of_a_few_gpus_accuse_these() -> None:
    for bad in ({3}, {3, 5}, {0, 1, 2}):
        fleet = merged(
            slow_links([pair for pair in ALL if bad & set(pair)], collectives="0.72 × 450")
        )
        assert sorted(part for _, part, _ in parts(fleet)) == [
            f"cuda:{index}" for index in sorted(bad)
        ]


@pytest.mark.parametrize(
    ("check", "kind", "reason", "suspects"),
    [
        ("links", "nvlink-down", "cuda:3: 12 of 18 NVLinks are up", ["cuda:3"]),
        (
            "compute",
            "limit",
            "cuda:3: gemm_bf16 500 TFLOP/s is below the limit of 620 (H100)",
            ["cuda:3"],
        ),
        ("storage", "limit", "storage_read 1 MB/s is below the limit of 5", [""]),
    ],
)
def test_slow_collectives_are_a_consequence_of_a_gpu_that_failed(
    check: str, kind: str, reason: str, suspects: list[str]
) -> None:
    report = slow_links([], collectives="0.72 × 450")
    other = with_problems(
        "n1", check, (FAIL, kind, reason), measurements=[measurement(1.0, "cuda:3", "other")]
    )
    report["checks"][-2] = other["checks"][-1]
    assert [part for _, part, _ in parts(merged(report))] == suspects
    report["checks"][-2]["verdict"] = report["checks"][-2]["problems"][0]["verdict"] = WARN
    assert next(part for _, part, _ in parts(merged(report))) == "", (
        "a warning does not explain a failure"
    )


def test_a_single_failure_among_warnings_of_the_same_kind_stays_alone() -> None:
    words = "cuda:{}: gemm_bf16 {} TFLOP/s is below the limit of 620 (H100)"
    problems = [
        (FAIL if index == BAD else WARN, "limit", words.format(index, 630 - index))
        for index in range(GPUS)
    ]
    numbers = [measurement(1.0, f"cuda:{index}", "other", judged=False) for index in range(GPUS)]
    fleet = merged(with_problems("n1", "compute", *problems, measurements=numbers))
    assert parts(fleet) == [("n1", f"cuda:{BAD}", TICKET), ("n1", "7 GPUs", TICKET)]


@pytest.mark.parametrize("check", ["memory", "links"])
@pytest.mark.parametrize("verdict", [WARN, INCOMPLETE])
def test_only_a_failure_sends_a_gpu_back(check: str, verdict: str) -> None:
    reason = "cuda:1: memory_copy 2400 GB/s is below the warning limit of 2512"
    fleet = merged(with_problems("n1", check, (verdict, "limit", reason)))
    assert parts(fleet) == [("n1", "cuda:1", RETEST)]
    assert parts(merged(with_problems("n1", check, (FAIL, "limit", reason))))[0][2] in (
        RMA,
        RESEAT,
        TICKET,
        RETEST,
    )
