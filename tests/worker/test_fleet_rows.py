"""Rows of the first screen: what nodes share is one row with what they have in common."""

from __future__ import annotations

import pytest

from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.suspects import racks_of
from tests.helpers.example_fleets import FIFTEEN, OTHER_DRIVER, WARM_RACK, large


def rows(fleet: Fleet) -> list[tuple[int, str]]:
    """Number of nodes and the first of each row."""
    nodes = [
        list(dict.fromkeys(fleet.suspects[i].node for i in cause.suspects))
        for cause in fleet.causes
    ]
    return [(len(names), names[0]) for names in nodes]


def test_each_of_15_kinds_of_fault_in_240_nodes_is_one_row() -> None:
    fleet = large()
    found = rows(fleet)
    assert {name for count, name in found if count == 1} == {
        *FIFTEEN,
        "gpu-r06-02",
        "gpu-r12-04",
        "gpu-r14-09",
    }
    assert len(found) == len(FIFTEEN) + 5
    (warm,) = [cause for cause in fleet.causes if len(cause.suspects) >= 16]
    assert warm.common == [f"rack {WARM_RACK} (16 of its 16 nodes)"]
    assert warm.title == "slow: compute"
    (drift,) = [cause for cause in fleet.causes if len(cause.suspects) == len(OTHER_DRIVER)]
    assert "driver 575.51 (4 of its 4 nodes)" in drift.common


def test_a_row_counts_each_part_once() -> None:
    fleet = large()
    places = [place for cause in fleet.causes for place in cause.suspects]
    assert sorted(places) == list(range(len(fleet.suspects)))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["gpu-r1-1", "gpu-r1-2", "gpu-r2-1", "gpu-r2-2"], ["gpu-r1", "gpu-r2"]),
        (["ip-10-0-1-7.ec2.internal", "ip-10-0-1-8", "ip-10-0-2-1", "ip-10-0-2-2"], ["ip-10-0-1", "ip-10-0-2"]),
        (["n1", "n2", "n3"], [""]),
        (["a-1", "b-1", "c-1"], [""]),
        (["gke-pool-4f2a-x7f2", "gke-pool-4f2a-b1c9"], [""]),
        ([], []),
    ],
)  # fmt: skip
def test_racks_are_read_from_names_if_these_show_them(names: list[str], found: list[str]) -> None:
    assert list(racks_of(names)) == found
    assert sorted(name for several in racks_of(names).values() for name in several) == sorted(names)
