"""The fleet page finds a rank by the name that the checks give it."""

from __future__ import annotations

from types import SimpleNamespace

from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.fleet.check_findings import world_places


def test_the_label_of_a_rank_leads_to_its_node_and_device():
    label = RankContext.label.fget(SimpleNamespace(rank=5, node="gpu-7", device="cuda:1"))
    report = {"world": {"size": 8, "nodes": [{"node": "gpu-6", "ranks": [0, 1]}, {"node": "gpu-7", "ranks": [4, 5]}]}}
    assert world_places(report, {}, f"{label} is late: the others wait 12 ms") == [("gpu-7", "cuda:1")]
