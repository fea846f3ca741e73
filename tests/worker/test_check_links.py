"""The links check names the slow link and the wrong word, and knows what each link can do."""

import os

import pytest
import torch

from gpuworker.accept import host_info
from gpuworker.accept.checks import links
from gpuworker.accept.kernels import copies
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.kinds import CONFIGURE, KINDS
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.cpu_worlds import PLANS, measured, verdict_on
from tests.helpers.evidence import failures, kinds, warnings
from tests.helpers.pynvml_stand_in import Library


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_healthy_links_pass_with_their_numbers(plan):
    evidence = measured(links, plan)
    check = verdict_on(links, evidence, plan)
    assert check.verdict == "PASS", check.reason
    for device in plan.devices:
        found = {m.name: m.value for m in evidence.measurements if m.device == device}
        assert all(found[name] > 0.1 for name in ("link_h2d", "link_d2h"))


def account(
    *gpus: Gpu, generations: dict[str, int] | None = None, widths: dict[str, int] | None = None
) -> Evidence:
    plan = Plan("cuda", len(gpus))
    under_load = {
        gpu.device: {
            "pcie_gen_max": (generations or {}).get(gpu.device),
            "pcie_width_max": (widths or {}).get(gpu.device),
        }
        for gpu in gpus
    }
    evidence = Evidence(facts={"links": links.links_of(list(gpus), [], under_load)})
    links.problems(evidence, plan)
    return evidence


def h100(index: int, **changes) -> Gpu:
    usual = {
        "name": "NVIDIA H100 80GB HBM3",
        "pcie_gen": 1,
        "pcie_gen_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    return Gpu(f"cuda:{index}", **usual | {"nvlinks_up": 18, "nvlinks_down": 0} | changes)


def test_limits_come_from_what_is_installed():
    evidence = account(h100(0), h100(1))
    assert failures(evidence) == warnings(evidence) == [], "a generation at rest is not a finding"
    ceiling, origin = evidence.ceilings["link_h2d"]
    assert (ceiling, origin) == (pytest.approx(63.0, rel=0.01), "PCIe generation 5 ×16")


def test_a_width_that_stays_low_under_load_is_named():
    """At rest a GPU may lower it."""
    assert failures(account(h100(0, pcie_width=8), widths={"cuda:0": 16})) == []
    (failure,) = failures(account(h100(0), h100(1), widths={"cuda:0": 16, "cuda:1": 8}))
    assert failure == "cuda:1: PCIe ran ×8 wide under load, GPU and slot can do ×16"


NVL = {"name": "NVIDIA H100 NVL"}  # NVML lists the 18 links of the chip; its bridge has 12
NEW, CARD = {"name": "new model"}, {"name": "some card with a bridge connector"}


@pytest.mark.parametrize(
    ("links_of_gpus", "model", "found"),
    [
        ([(18, 0), (12, 0)], {}, [("FAIL", "nvlink-down", ["cuda:1"])]),
        ([(18, 0), (16, 2)], {}, [("FAIL", "nvlink-down", ["cuda:1"])]),
        ([(18, 0), (0, 18)], {}, [("FAIL", "nvlink-down", ["cuda:1"])]),
        ([(17, 1), (17, 1)], {}, [("FAIL", "nvlink-down", [f"cuda:{index}"]) for index in (0, 1)]),
        ([(0, 18), (0, 18)], {}, [("FAIL", "fabric-manager", [])]),
        (
            [(12, 0), (12, 0)],
            {},
            [("WARN", "unknown", [f"cuda:{index}"]) for index in (0, 1)],
        ),  # nvidia-ml-py 11
        ([(12, 6), (12, 6)], NVL, []),
        ([(12, 6), (11, 7)], NVL, [("FAIL", "nvlink-down", ["cuda:1"])]),
        ([(17, 1)], NEW, [("WARN", "nvlink-down", ["cuda:0"])]),
        ([(0, 12), (0, 12)], CARD, []),
    ],
)
def test_nvlinks_that_the_model_has_and_that_are_not_up(links_of_gpus, model, found):
    gpus = [
        h100(i, nvlinks_up=up, nvlinks_down=down, **model)
        for i, (up, down) in enumerate(links_of_gpus)
    ]
    assert [(p.verdict, p.kind, p.parts) for p in account(*gpus).problems] == found


@pytest.mark.parametrize("claimed", [{"pcie_gen_max": 4}, {"pcie_width_max": 8, "pcie_width": 8}])
def test_a_link_that_claims_less_than_the_model_has_is_a_warning(claimed):
    """A riser, the firmware of the host or a virtual machine: the limit follows the claim, so it
    must be named.
    """
    (warning,) = warnings(account(h100(0), h100(1, **claimed)))
    assert warning.startswith("cuda:1: ") and "31.5 GB/s" in warning and "63" in warning


def test_a_link_below_its_generation_under_load_is_doubtful():
    evidence = account(h100(0), h100(1), generations={"cuda:0": 5, "cuda:1": 4})
    assert warnings(evidence) == ["cuda:1: PCIe ran at generation 4 under load, it supports 5"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"link_errors": (1, 0, 2, 0)}, ["cuda:0: 54 NVLink errors during this check, 54 in all"]),
        ({"pcie_replays": 9}, ["cuda:0: 9 PCIe replays during this check, 9 in all"]),
        ({"pcie_replays": None, "link_errors": None}, []),
        ({}, []),
    ],
)
def test_error_counters_that_grow_under_load_are_a_warning(changes, words):
    before, after = (gpu_inventory.from_nvml(Library(gpu))[0] for gpu in ({}, changes))
    evidence = account(Gpu("cuda:0"))
    evidence.facts["links"]["cuda:0"]["errors"] = {
        field: [getattr(before, field), getattr(after, field)] for field in links.ERRORS
    }
    links.problems(evidence, Plan("cuda", 1))
    assert warnings(evidence) == words


def test_buffers_of_host_links_are_made_and_copied_near_their_gpu(monkeypatch):
    """As nvbandwidth does; afterwards the thread may use all its CPUs again."""
    plan, before, used = Plan("cpu", 0, seconds=1), os.sched_getaffinity(0), []
    near = {"cpu": {max(before)}, "cpu:1": {10_000}}

    class Spy(copies.Link):
        def __init__(self, *its):
            used.append(os.sched_getaffinity(0))
            super().__init__(*its)

        def seconds(self, *arguments):
            used.append(os.sched_getaffinity(0))
            return super().seconds(*arguments)

    monkeypatch.setattr(copies, "Link", Spy)
    zeros_like = torch.zeros_like
    monkeypatch.setattr(
        torch,
        "zeros_like",
        lambda *a, **k: used.append(os.sched_getaffinity(0)) or zeros_like(*a, **k),
    )
    links._measure_links([torch.device("cpu")], near, plan, Evidence())
    made = 2  # Links are views of buffers that were made near their GPU
    assert len(used) > made and used.count({max(before)}) == len(used) - made
    assert os.sched_getaffinity(0) == before


def test_a_pod_without_a_cpu_near_its_gpu_is_a_warning(monkeypatch, tmp_path):
    allowed = min(os.sched_getaffinity(0))
    for bus_id, cpus in {
        "near": f"{allowed}-{allowed + 3},9000",
        "far": "9000-9015",
        "unknown": "nonsense",
    }.items():
        (tmp_path / bus_id).mkdir()
        (tmp_path / bus_id / "local_cpulist").write_text(f"{cpus}\n")
    read = host_info.local_cpus
    monkeypatch.setattr(host_info, "local_cpus", lambda bus_id: read(bus_id, tmp_path))
    evidence = Evidence()
    near = links._near(
        [Gpu(f"cuda:{i}", bus_id=b) for i, b in enumerate(("near", "far", "unknown", ""))], evidence
    )
    assert near["cuda:0"] == {*range(allowed, allowed + 4), 9000} and near["cuda:2"] == set()
    assert len(warnings(evidence)) == 1 and warnings(evidence)[0].startswith(
        "cuda:1: this pod may not use any CPU"
    )
    assert {KINDS[kind].act.verb for kind in kinds(evidence)} == {CONFIGURE}
    with host_info.bound_to({9000}):
        assert os.sched_getaffinity(0) == os.sched_getaffinity(os.getpid())
