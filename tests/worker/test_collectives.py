"""The collectives check: every element is compared, the slowest rank counts, a rank that dies is
named.
"""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch

from gpuworker.accept.checks import collectives as check
from gpuworker.accept.checks.collectives import sweep
from gpuworker.accept.checks.collectives.operations import NAMES, Operation, factor, operations
from gpuworker.accept.distributed import local_world
from gpuworker.judgement.check_spec import Plan
from tests.helpers.cpu_worlds import measured
from tests.helpers.evidence import failures, not_measured

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this
# one.
PLAN = Plan("cuda", 8)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def plan(tmp_path, monkeypatch) -> Plan:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return Plan("cpu", 0, scratch=tmp_path, processes=3)


def test_three_ranks_are_right_in_every_collective(plan):
    """Three, so that parts of a tensor do not divide evenly, and a rank has two different
    neighbours.
    """
    found = measured(check, plan)
    assert (failures(found), not_measured(found)) == ([], [])
    numbers = {measurement.name.removesuffix("_busbw") for measurement in found.measurements}
    lacking = {name.removesuffix("_busbw") for name in found.inapplicable}
    assert numbers | lacking == set(NAMES)
    assert {"all_reduce", "broadcast", "send_recv"} <= numbers, "these Gloo has in every version"
    points = found.facts["curves"]["all_reduce_busbw"]
    assert [size for size, _ in points] == [4104, 65544, 1048584], (
        "rounded up to whole floats for each rank"
    )
    assert points[-1][1] == next(
        m.value for m in found.measurements if m.name == "all_reduce_busbw"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found_in_every_collective(plan, name):
    """The last element of one rank, in the measured tensor itself."""
    results = local_world.run(replace(plan, inject="wrong-element"), only, name=name)
    if results[0] == {"unsupported": True}:
        pytest.skip(f"Gloo of this torch has no {name}")
    assert [bool(result["faults"]) for result in results] == [False, False, True]
    assert results[2]["faults"][0].startswith(f"{name} of 120 bytes, round 0: 1 of ")


def only(context, name: str) -> dict:
    (operation,) = (o for o in sweep.operations(context, 30) if o.name == name)
    try:
        return {"faults": sweep.trial(context, operation, rounds=2, warm_up=0)[1]}
    except RuntimeError as error:
        assert "not support" in str(error)
        return {"unsupported": True}


def test_a_rank_that_sends_wrong_data_is_named_and_not_every_receiver(plan, monkeypatch):
    """Rank 1 sends another bit than it should, in each collective that keeps the parts of the ranks
    apart.
    """

    class Corrupt(Operation):
        def fill(self, round_: int) -> None:
            super().fill(round_)
            if self.rank == 1:
                self.input.add_(1)

    def corrupt(context, numel):
        found = [o for o in operations(context, numel) if o.name in ("all_gather", "all_to_all")]
        return [Corrupt(**vars(operation)) for operation in found]

    monkeypatch.setattr(sweep, "operations", corrupt)
    found = measured(check, plan)
    assert failures(found) and all(
        text.startswith(
            f"rank 1 (node {os.uname().nodename}, cpu): what it sent arrived wrong at 2 of 2 other ranks"
        )
        for text in failures(found)
    )


@pytest.mark.parametrize(
    "senders", [[[], [0], [2]], [[], [], [0]], [[1], [0], [0]]], ids=["two", "one link", "each"]
)
def test_without_one_common_sender_the_receivers_are_named(senders):
    def result(rank):
        wrong = ["all_gather of 9 bytes, round 0: 1 of 9 elements are wrong"] * bool(senders[rank])
        return {"label": f"rank {rank} (node a, cuda:{rank})", "model": "", "curves": {}, "wrong": wrong,
                "senders": senders[rank], "unsupported": {}}  # fmt: skip

    found = sweep.evidence([result(rank) for rank in range(3)], PLAN, 1)
    assert [text[:6] for text in failures(found)] == [
        f"rank {rank}" for rank in range(3) if senders[rank]
    ]


@pytest.mark.parametrize(("free_gib", "largest"), [(78, 1 << 32), (39, 1 << 31), (14, 1 << 30)])
def test_sizes_that_do_not_fit_the_memory_of_the_smallest_gpu_are_left_out(
    free_gib, largest, monkeypatch
):
    class Context:
        device = torch.device("cuda")
        gather = staticmethod(lambda key, value: [78 << 30, free_gib << 30])
        share = staticmethod(lambda value: value)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    assert max(sweep.fitting(Context, sweep.sizes_of(Plan("cuda", 8, "full")))) == largest


def test_the_slowest_rank_of_each_round_counts():
    def result(times):
        curves = {"all_reduce": {"4000000000": times}}
        return {
            "label": "",
            "model": "",
            "curves": curves,
            "wrong": [],
            "senders": [],
            "unsupported": {},
        }

    found = sweep.evidence([result([1.0, 4.0, 1.0]), result([2.0, 1.0, 3.0])], PLAN, 1)
    (measurement,) = found.measurements
    assert measurement.value == pytest.approx(4 / 3 * 1.0), (
        "4 GB, 3 s in the median round, factor 2(n-1)/n = 1"
    )


def gpu_results(reduce_gbps: float, gather_gbps: float, gpus: int = 8) -> list[dict]:
    """As 8 GPUs of an H100 node would give them."""
    size, model = 8_000_000_000, "NVIDIA H100 80GB HBM3"
    seconds = {
        "all_reduce": size * factor("all_reduce", gpus) / reduce_gbps / 1e9,
        "all_gather": size * factor("all_gather", gpus) / gather_gbps / 1e9,
    }
    curves = {name: {str(size): [value]} for name, value in seconds.items()}
    return [
        {
            "label": "",
            "model": model,
            "curves": curves,
            "wrong": [],
            "senders": [],
            "unsupported": {},
        }
    ] * gpus


def test_nvlink_is_the_ceiling_on_one_node():
    found = sweep.evidence(gpu_results(367, 361), PLAN, 1)
    assert found.ceilings["all_reduce_busbw"] == (450, "one-way NVLink of H100 SXM")


def test_across_nodes_the_network_cards_set_the_ceiling():
    found = sweep.evidence(gpu_results(300, 200, gpus=16), replace(PLAN, nic_gbps=25), 2)
    assert found.ceilings["all_reduce_busbw"] == (200, "8 NICs of 25 GB/s per node")
    assert found.ceilings["all_to_all_busbw"][0] == pytest.approx(25 * 15 / 8)
    assert sweep.evidence(gpu_results(300, 200, gpus=16), PLAN, 2).ceilings == {}, (
        "nothing is guessed"
    )


def test_a_rank_that_is_killed_is_named(plan):
    start = time.monotonic()
    with pytest.raises(local_world.BrokenWorldError, match=r"^rank 1 ended with SIGKILL$"):
        local_world.run(plan, dies)
    assert time.monotonic() - start < 50, "the others do not wait for their time-out"


def dies(context) -> dict:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sweep.dist.barrier()
    sys.exit("unreachable")
