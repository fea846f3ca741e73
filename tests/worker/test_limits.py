"""Limits follow the present GPU model; a limit that no node or every node passes is refused."""

import math

import pytest

from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Measure
from gpuworker.judgement.limits import KINDS, LEAST_SHARE, NO_RULE, RULES, Limits, Rule, problems
from gpuworker.runtime import gpu_specs

H100, H200, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
BF16 = Measure("TFLOP/s", "speed", limit="gemm_bf16")
PEER = Measure("GB/s", "link", limit="peer_link")


def table_problems() -> list[str]:
    """Refused limits of the table itself, per model."""
    found = []
    for key, rule in RULES.items():
        for kind, figure, entry in judged_by(key, rule):
            for share in filter(None, rule.shares[kind]):
                refused = problems({key: share * figure}, (entry["model"],))
                found += [f"{entry['model']}: {text}" for text in refused.values()]
            if figure > entry[key].get("best", math.inf):
                best = entry[key]["best"]
                found.append(
                    f"{entry['model']}: {key}: the {kind} figure {figure:g} is above the best known, {best:g}"
                )
        if not all(LEAST_SHARE <= share <= 1 for share in rule.shares.get("derived", ())):
            found.append(
                f"rules.{key}.derived: shares of a ceiling lie between {LEAST_SHARE} and 1"
            )
    return found


def judged_by(key: str, rule: Rule) -> list[tuple[str, float, dict]]:
    """(kind, figure, entry) for every model that has a figure for the key."""
    found = []
    for entry in gpu_specs.MODELS:
        figures = entry.get(key, {})
        kind = next((kind for kind in KINDS if kind in figures and kind in rule.shares), None)
        found += [(kind, figures[kind], entry)] if kind else []
    return found


def test_the_table_itself_can_be_met_and_missed():
    assert table_problems() == []
    for entry in gpu_specs.MODELS:
        assert all(
            figures["source"] for key, figures in entry.items() if key not in ("model", "match")
        )
    assert all(rule.source and rule.unit for rule in RULES.values())


def test_every_limit_of_a_check_is_in_the_table():
    limited = [
        measure
        for check in registry.load().values()
        for measure in check.measures.values()
        if measure.limit
    ]
    assert {"gemm_bf16", "memory_copy", "host_link", "busbw_node"} <= {
        measure.limit for measure in limited
    }
    assert [measure for measure in limited if RULES[measure.limit].unit != measure.unit] == []


@pytest.mark.parametrize(
    ("key", "value", "model", "possible"),
    [
        ("memory_copy", 2.333, H200, "960 to 4800"),
        ("busbw_node", 800, H100, "96.3 to 481.5"),
        ("peer_link", 500, H100, "90 to 450"),
        ("gemm_bf16", 1979, H100, "197.8 to 989"),
        ("gemm_bf16", 1e6, "", "0 to 2500"),
        ("gemm_bf16", float("nan"), H100, "a positive number"),
        ("host_link", -1, "", "a positive number"),
        ("mfu", 1.16, H100, "0.01 to 1.15"),
        ("storage_write", 0.5, "", "1 to 1e+06"),
        ("storage_read_p99", 1e6, "", "0.001 to 60000"),
        ("gradient_error", 1e-30, "", "2.22045e-16 to 1e-10"),
        ("slowest_compute", 0.5, "", "1.001 to 100"),
    ],
)
def test_a_limit_that_no_node_or_every_node_passes_is_refused(key, value, model, possible):
    found = problems({key: value}, (model,) if model else ())
    assert list(found) == [key] and possible in found[key], found


def test_a_number_without_figures_declares_which_limits_make_sense():
    for check in registry.node_checks().values():
        for name, measure in check.measures.items():
            if not any(
                gpu_specs.figures(measure.limit or name, entry["model"])
                for entry in gpu_specs.MODELS
            ):
                least, most = measure.meaningful
                assert 0 < least < most < 1e9 or RULES.get(measure.limit or "", NO_RULE).ceiling, (
                    name
                )


def test_a_limit_that_makes_sense_is_taken():
    others = {
        "mfu": 0.4,
        "storage_write": 2000,
        "gradient_error": 1e-12,
        "link_h2d": 45,
    }
    assert problems(others, (H100,)) == problems(others) == {}
    assert problems({"gemm_bf16": 700, "busbw_node": 440, "memory_copy": 2900}, (H100, H100)) == {}
    assert problems({"gemm_fp32": 0.001, "tokens": 3}) == {}, (
        "on the CPU only what no GPU can do is refused"
    )
    assert problems({"gemm_bf16": 0.001}, ("NVIDIA X900",)) == {}, "nothing is known of this one"


def test_the_best_known_figure_counts_and_the_source_is_told():
    there = Limits((H100, H200))
    first, second = (there.threshold("gemm_bf16", BF16, f"cuda:{index}") for index in (0, 1))
    assert (first.fail, first.warn, first.ceiling) == (
        pytest.approx(0.85 * 690),
        pytest.approx(0.9 * 690),
        989,
    )
    assert first.source.startswith("0.85 × 690, WARN at 0.9 × 690, sustained figure of H100 SXM: ")
    assert second.fail == pytest.approx(0.75 * 794.5)
    assert there.threshold("gemm_bf16", BF16).fail is None, "the node as a whole has no model"


def test_a_data_sheet_alone_only_warns():
    threshold = Limits(("NVIDIA A10",)).threshold("gemm_bf16", BF16, "cuda:0")
    assert (threshold.fail, threshold.warn) == (None, pytest.approx(0.6 * 125))


@pytest.mark.parametrize(
    ("model", "key", "rate"),
    [
        ("Tesla T4", "gemm_fp16", 24),
        ("NVIDIA L4", "gemm_bf16", 59.4),
        ("NVIDIA L40S", "gemm_fp32", 46.9),
    ],
)
def test_a_healthy_gpu_that_its_power_limits_is_no_warning(model, key, rate):
    """Such GPUs reach half of their data sheet or less. One report of one GPU is not sufficient for
    a FAIL.
    """
    found = Limits((model,)).threshold(key, Measure("TFLOP/s", "speed", limit=key), "cuda:0")
    assert found.fail is None and 0.7 * rate < found.warn < 0.85 * rate


def test_what_is_installed_is_a_ceiling():
    found = Limits((A100, A100)).threshold("peer_bandwidth", PEER, "cuda:0→cuda:1")
    assert (found.fail, found.ceiling) == (pytest.approx(0.74 * 300), 300)
    claimed = Limits((A100,)).threshold("peer_bandwidth", PEER, "cuda:0", (200, "8 NVLinks"))
    assert (claimed.fail, claimed.ceiling) == (found.fail, 300), "NVLink is what the model has"
    slot = Measure("GB/s", "link", limit="host_link")
    derived = Limits((A100,)).threshold("link_h2d", slot, "cuda:0", (16, "PCIe 4 x8"))
    assert (derived.fail, derived.ceiling, derived.source) == (
        pytest.approx(11.2), 16, "0.7 × 16, WARN at 0.76 × 16, PCIe 4 x8",
    )  # fmt: skip
    assert Limits().threshold("peer_bandwidth", PEER, "cpu").fail is None


@pytest.mark.parametrize("key", ["gemm_bf16", "speed"])
def test_the_limit_of_the_user_wins(key):
    found = Limits((H100,), {key: 700}).threshold(
        "speed", Measure("TFLOP/s", "speed", limit="gemm_bf16"), "cuda:0"
    )
    assert (found.fail, found.warn, found.source) == (700, None, f"limits.{key}")


@pytest.mark.parametrize(
    ("models", "source"),
    [
        (("NVIDIA X900",), "none: no figure for NVIDIA X900; only compared with the fleet"),
        ((), "none: a CPU rehearsal"),
    ],
)
def test_an_unknown_model_has_no_limit_and_the_source_states_it(models, source):
    found = Limits(models).threshold("gemm_bf16", BF16, "cuda:0")
    assert (found.fail, found.warn, found.source) == (None, None, source)
