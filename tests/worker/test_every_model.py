"""Healthy GPUs of every NVIDIA model in the table have no finding, and each fault below the
detectors is named.

The GPUs are those of the stand-in for NVML: nothing here ran on a GPU.
"""

import re

import pytest

from gpuworker.accept.checks import environment, links
from gpuworker.judgement.check_spec import Measure, Plan
from gpuworker.judgement.limits import RULES, Limits
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import gpu_inventory, gpu_specs
from tests.helpers import gpu_node
from tests.helpers.cpu_worlds import measured
from tests.helpers.evidence import failures, not_measured, warnings

NAMES = {
    "T4": "Tesla T4",
    "V100 SXM2": "Tesla V100-SXM2-32GB",
    "A100 SXM 80 GB": "NVIDIA A100-SXM4-80GB",
    "A100 SXM 40 GB": "NVIDIA A100-SXM4-40GB",
    "A100 PCIe": "NVIDIA A100 80GB PCIe",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "GH200": "NVIDIA GH200 480GB",
    "RTX PRO 6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
MODELS = [entry["model"] for entry in gpu_specs.MODELS if not entry["model"].startswith("MI")]
CHIP_LINKS = {"H100 NVL": 18}  # NVML lists those of the chip; elsewhere a board has all of them
GENERATIONS = {15.75: 3, 31.5: 4, 63: 5}
# Change to the driver's answers -> pattern of the finding.
FAULTS = {
    "uncorrected": (3, r"3 uncorrectable memory errors"),
    "remapped": ((0, 1, 0, 1), r"could not remap"),
    "remapped ": ((0, 1, 1, 0), r"not yet remapped"),
    "reasons ": (0x2, r"application clocks are set"),
    "recovery_action ": (99, r"recovery action 99"),
    "uuid": ("", r"does not report its UUID"),
    "pages_pending": (1, r"not yet retired"),
    "width": (1, r"PCIe is ×1 wide"),
    "reasons": (0x40, r"hardware thermal slowdown"),
    "lost": (True, r"the driver has lost it"),
    "recovery_action": (4, r"the driver demands: drain the node"),
    "ecc": ([0, 0], r"ECC is off"),
    "mig": ([1, 1], r"MIG is on"),
    "temperature": (None, r"does not report the temperature"),
    "pcie_replays": (None, r"does not report the replays of its PCIe link"),
    "link_errors": (None, r"does not report the errors of its NVLinks"),
    "power_limit_mw": (300_000, r"power is capped"),
    "gen_max": (2, r"PCIe can do generation 2|differ in PCIe generation"),
    "links": ([0], r"\d+ of \d+ NVLinks are up|0 NVLinks, other GPUs"),
}


def healthy(model: str) -> dict:
    up = int(gpu_specs.figures("nvlinks", model).get("specification", 0))
    pcie = gpu_specs.figures("pcie_x16", model).get("specification", 63)
    states = [1] * up + [0] * (CHIP_LINKS.get(model, up) - up)
    return {
        "name": NAMES.get(model, f"NVIDIA {model}"),
        "links": states,
        "gen_max": GENERATIONS[pcie],
    }


def findings(monkeypatch, *gpus: dict) -> list[str]:
    gpu_node.install(monkeypatch, *gpus)
    plan, evidence = Plan("cuda", len(gpus)), measured(environment, Plan("cuda", len(gpus)))
    inventory = gpu_inventory.with_torch_names(
        gpu_inventory.inventory()[1], dict.fromkeys(plan.devices, "")
    )
    under_load = Evidence(facts={"links": links.links_of(inventory, {}, {})})
    links.problems(under_load, plan)
    return [
        text for e in (evidence, under_load) for text in failures(e) + not_measured(e) + warnings(e)
    ]


@pytest.mark.parametrize("model", MODELS)
def test_healthy_gpus_have_no_finding(monkeypatch, model):
    gpu = healthy(model)
    assert gpu_specs.entry(gpu["name"])["model"] == model, (
        "the table knows the name that the driver gives"
    )
    assert findings(monkeypatch, gpu, gpu) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_fault_of_one_gpu_is_named(monkeypatch, model, fault):
    value, pattern = FAULTS[fault]
    gpu = healthy(model)
    if fault in ("links", "link_errors") and not any(gpu["links"]):
        pytest.skip("a model without NVLink")
    if fault == "links":
        value = [0] * len(gpu["links"])
    found = findings(monkeypatch, gpu, gpu | {fault.strip(): value})
    assert any(re.search(pattern, text) for text in found), found


@pytest.mark.parametrize("entry", gpu_specs.MODELS, ids=lambda entry: entry["model"])
def test_the_rates_of_healthy_gpus_are_within_their_limits(entry):
    """A node under load reaches the sustained figure, or about 0.92 of the best of one GPU alone
    (H100: 730 of 794).
    """
    for key, rule in RULES.items():
        figures = entry.get(key, {})
        usual = figures.get("sustained", figures.get("best", 0) * 0.92)
        if usual:
            threshold = Limits((entry["model"],)).threshold(
                key, Measure(rule.unit, "", limit=key), "cuda:0"
            )
            assert threshold.warn < usual <= threshold.ceiling, key
