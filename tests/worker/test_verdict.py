"""A verdict needs evidence: only complete numbers within their limits give PASS."""

import dataclasses
import math

import pytest

from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.report import Evidence, Measurement, Problem
from gpuworker.judgement.verdict import Check, judge_check

H100 = "NVIDIA H100 80GB HBM3"
PLAN = Plan("cuda", 2)
SPEC = Spec(
    "COMPUTE",
    {"quick": 1},
    {
        "speed": Measure("TFLOP/s", "that it is fast", limit="gemm_bf16"),
        "latency": Measure("us", "that it is near", better="lower", each="node"),
    },
)


def verdict(evidence: Evidence, spec: Spec = SPEC, **user: float) -> Check:
    return judge_check(spec, evidence, Limits((H100, H100), user), PLAN)


def evidence(first: float = 730, second: float = 730, latency: float = 5, **more) -> Evidence:
    seen = [
        Problem(v.upper(), "setting", more.pop(v))
        for v in ("warn", "incomplete", "fail")
        if v in more
    ]
    return Evidence(
        [
            Measurement("speed", first, "TFLOP/s", "cuda:0"),
            Measurement("speed", second, "TFLOP/s", "cuda:1"),
            Measurement("latency", latency, "us"),
        ],
        problems=seen,
        **more,
    )


def test_a_model_without_a_figure_is_a_warning_once_per_number():
    unknown = Limits(("NVIDIA X900",) * 2)
    found = judge_check(SPEC, evidence(), unknown, PLAN)
    assert (found.verdict, found.reason) == (
        "WARN",
        "speed: no figure for NVIDIA X900; only compared with the fleet",
    )


def test_all_numbers_within_their_limits_pass():
    found = verdict(evidence(), latency=10)
    assert (found.verdict, found.reason) == ("PASS", "")
    speed, _, latency = found.numbers
    assert (speed.limit, speed.warn_limit, speed.ceiling) == (
        pytest.approx(586.5),
        pytest.approx(621),
        989,
    )
    assert "hack/gpu/results" in speed.limit_source
    assert (latency.limit, latency.limit_source) == (10, "limits.latency")


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        (
            evidence(580),
            "FAIL",
            r"cuda:0: speed 580 TFLOP/s is below the limit of 586.5 (0.85 × 690, WARN at 0.9 × 690, ",
        ),
        (evidence(610), "WARN", r"cuda:0: speed 610 TFLOP/s is below the warning limit of 621 ("),
        (
            evidence(1200),
            "INCOMPLETE",
            "cuda:0: speed 1200 TFLOP/s exceeds the hardware maximum (989)",
        ),
        (
            evidence(latency=11),
            "FAIL",
            "node: latency 11 us is above the limit of 10 (limits.latency)",
        ),
        (evidence(math.nan), "INCOMPLETE", "cuda:0: speed is not finite (nan)"),
        (evidence(second=math.inf), "INCOMPLETE", "cuda:1: speed is not finite (inf)"),
        (evidence(fail="cuda:1: a bit flipped"), "FAIL", "cuda:1: a bit flipped"),
        (evidence(incomplete="no NVML"), "INCOMPLETE", "no NVML"),
        (evidence(warn="cuda:1 is warm"), "WARN", "cuda:1 is warm"),
        (
            evidence(580, warn="warm", incomplete="lost", fail="flip"),
            "FAIL",
            "flip; cuda:0: speed 580",
        ),
        (Evidence(), "INCOMPLETE", "cuda:0: no speed; cuda:1: no speed; no latency"),
        (Evidence(evidence().measurements[1:]), "INCOMPLETE", "cuda:0: no speed"),
        (Evidence(evidence().measurements[:2]), "INCOMPLETE", "no latency"),
        (Evidence([Measurement("watts", 1, "W")]), "INCOMPLETE", "cuda:0: no speed"),
    ],
)
def test_the_reason_names_the_part_and_the_limit(found, expected, reason):
    check = verdict(found, latency=10)
    assert check.verdict == expected
    assert check.reason.startswith(reason)


def test_a_check_that_finds_nothing_proves_nothing():
    bare = Spec("ENV", {"quick": 1})
    assert verdict(Evidence(), bare).verdict == "INCOMPLETE"
    assert verdict(Evidence(facts={"torch": "2.9"}), bare).verdict == "PASS"


def test_what_cannot_apply_is_skipped_with_its_reason():
    optional = {
        name: dataclasses.replace(measure, limit=None, optional=True)
        for name, measure in SPEC.measures.items()
    }
    spec = dataclasses.replace(SPEC, measures=optional)
    no_peer = {"speed": "one GPU has no peer", "latency": "one GPU has no peer"}
    found = verdict(Evidence(inapplicable=no_peer), spec)
    assert (found.verdict, found.reason) == ("SKIP", "one GPU has no peer")
    down = [Problem("FAIL", "nvlink-down", "the link is down")]
    assert verdict(Evidence(inapplicable=no_peer, problems=down)).reason == "the link is down"
    partly = Evidence(evidence().measurements[:2], inapplicable={"latency": "no fabric"})
    assert verdict(partly, spec).verdict == "PASS"
    assert verdict(partly).verdict == "INCOMPLETE", "every node of two GPUs has a latency"


def test_a_derived_ceiling_binds_with_some_tolerance():
    """A copy that did not wait for its end is the commonest error of a timer."""
    spec = Spec(
        "LINKS",
        {"quick": 1},
        {"link": Measure("GB/s", "that it is fast", limit="host_link", each="node")},
    )
    for value, expected in ((73, "INCOMPLETE"), (70, "PASS"), (47, "WARN"), (43, "FAIL")):
        found = Evidence(
            [Measurement("link", value, "GB/s")], ceilings={"link": (63, "PCIe 5.0 x16")}
        )
        assert verdict(found, spec).verdict == expected
