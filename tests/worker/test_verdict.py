"""A verdict needs evidence: only complete numbers within their limits give PASS."""

import math

import pytest

from gpuworker.accept.check_spec import Evidence, Measure, Plan, Spec
from gpuworker.accept.limits import Limits
from gpuworker.accept.report import Check, Measurement
from gpuworker.accept.verdict import judge

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
    return judge("compute", spec, evidence, Limits((H100, H100), user), PLAN)


def evidence(first: float = 730, second: float = 730, latency: float = 5, **more) -> Evidence:
    return Evidence(
        [
            Measurement("speed", first, "TFLOP/s", "cuda:0"),
            Measurement("speed", second, "TFLOP/s", "cuda:1"),
            Measurement("latency", latency, "us"),
        ],
        **more,
    )


def test_a_model_without_a_figure_is_a_warning_once_per_number():
    found = judge("compute", SPEC, evidence(), Limits(("NVIDIA X900",) * 2), PLAN)
    assert (found.verdict, found.reason) == ("WARN", "speed: no figure for NVIDIA X900; only compared with the fleet")


def test_all_numbers_within_their_limits_pass():
    found = verdict(evidence(), latency=10)
    assert (found.verdict, found.reason) == ("PASS", "")
    speed, _, latency = found.measurements
    assert (speed.limit, speed.warn_limit, speed.ceiling) == (pytest.approx(620.5), pytest.approx(657), 989)
    assert speed.margin == pytest.approx(730 / 620.5) and "gpu-fryer" in speed.limit_source
    assert (latency.limit, latency.margin, latency.limit_source) == (10, 2, "limits.latency")


def test_a_measurement_carries_its_direction_and_whether_outliers_of_it_are_findings():
    speed, _, latency = verdict(evidence()).measurements
    assert (speed.better, speed.judged) == ("higher", True)
    assert (latency.better, latency.judged) == ("lower", False), "informational: no limit key"


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        (
            evidence(600),
            "FAIL",
            r"cuda:0: speed 600 TFLOP/s is below the limit of 620.5 (0.85 × 730, WARN at 0.9 × 730, ",
        ),
        (evidence(640), "WARN", r"cuda:0: speed 640 TFLOP/s is below the warning limit of 657 ("),
        (
            evidence(1200),
            "INCOMPLETE",
            "cuda:0: speed 1200 TFLOP/s exceeds the hardware maximum (989)",
        ),
        (evidence(latency=11), "FAIL", "node: latency 11 us is above the limit of 10 (limits.latency)"),
        (evidence(math.nan), "INCOMPLETE", "cuda:0: speed is not finite (nan)"),
        (evidence(second=math.inf), "INCOMPLETE", "cuda:1: speed is not finite (inf)"),
        (evidence(failures=["cuda:1: a bit flipped"]), "FAIL", "cuda:1: a bit flipped"),
        (evidence(not_measured=["no NVML"]), "INCOMPLETE", "no NVML"),
        (evidence(warnings=["cuda:1 is warm"]), "WARN", "cuda:1 is warm"),
        (evidence(600, warnings=["warm"], not_measured=["lost"], failures=["flip"]), "FAIL", "flip; cuda:0: speed 600"),
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
    one_gpu = {"speed": "one GPU has no peer", "latency": "one GPU has no peer"}
    found = verdict(Evidence(inapplicable=one_gpu))
    assert (found.verdict, found.reason) == ("SKIP", "one GPU has no peer")
    found = verdict(Evidence(inapplicable=one_gpu, failures=["the link is down"]))
    assert found.verdict == "FAIL"
    found = verdict(Evidence(evidence().measurements[:2], inapplicable={"latency": "no fabric"}))
    assert (found.verdict, found.facts["inapplicable"]) == ("PASS", {"latency": "no fabric"})


def test_a_derived_ceiling_is_no_law_of_nature():
    """Links may be bundled in ways that a check does not know: it must not call a fast one a lie."""
    spec = Spec("LINKS", {"quick": 1}, {"link": Measure("GB/s", "that it is fast", limit="host_link", each="node")})
    for value, expected in ((100, "PASS"), (47, "WARN"), (43, "FAIL")):
        found = Evidence([Measurement("link", value, "GB/s")], ceilings={"link": (63, "PCIe 5.0 x16")})
        assert verdict(found, spec).verdict == expected


def test_samples_are_thinned_out_evenly():
    found = verdict(evidence(samples={"speed": [float(i) for i in range(1000)], "few": [1.0]}))
    assert found.samples["few"] == [1.0]
    assert found.samples["speed"] == [float(i) for i in range(0, 1000, 5)]


def test_a_measurement_without_declaration_is_incomplete():
    found = verdict(Evidence([*evidence().measurements, Measurement("watts", 1, "W", "cuda:1")]))
    assert found.verdict == "INCOMPLETE" and found.reason.startswith("cuda:1: watts is not declared")


def test_every_problem_keeps_its_own_verdict():
    found = verdict(evidence(600, 640))
    assert [(problem.verdict, problem.reason[:6]) for problem in found.problems] == [
        ("FAIL", "cuda:0"),
        ("WARN", "cuda:1"),
    ]
    assert found.reason == "; ".join(problem.reason for problem in found.problems)
