"""The cores and the memory of the host: which cores are compared, and what is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuworker.accept import host_info
from gpuworker.accept.checks import host
from gpuworker.judgement.check_spec import Plan
from tests.helpers.cpu_worlds import verdict_on


def sysfs(folder: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for node, cpus in nodes.items():
        (folder / f"node/node{node}").mkdir(parents=True)
        (folder / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    for cpu, both in siblings.items():
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{both}\n")
    return folder


def test_one_cpu_of_each_core_is_used_by_numa_node(tmp_path):
    """Two sockets of two cores with two threads each, and the memory of a GPU, which has no CPU."""
    pairs = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    root = sysfs(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7", 2: ""}, pairs)
    assert host_info.cores_by_numa_node(set(range(8)), root) == {0: [0, 1], 1: [2, 3]}
    assert host_info.cores_by_numa_node({4, 5, 6}, root) == {0: [4, 5], 1: [6]}, (
        "those that the pod may use"
    )
    assert host_info.cores_by_numa_node({0, 4}, tmp_path / "none") == {0: [0, 4]}


@pytest.fixture
def simulated(monkeypatch):
    """A GPU node of two sockets with four cores each; `speed` of a core in copies and in SHA-256."""
    monkeypatch.setattr(
        host_info, "cores_by_numa_node", lambda _: {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def run(copy: dict[int, float], sha: dict[int, float]):
        spent = []

        def times(cpus, make, budget_s, slow):
            spent.append(budget_s)
            speed = sha if make is host._hash else copy
            return {cpu: [0.01 / speed.get(cpu, 1.0)] * 5 for cpu in cpus}

        monkeypatch.setattr(host, "times", times)
        plan = Plan("cuda", 1)
        evidence = host.measure(plan)
        found = verdict_on(host, evidence, plan)
        found.facts = evidence.facts
        assert 0 < sum(spent) <= plan.seconds + 1e-6, "however many NUMA nodes there are"
        return found

    return run


def test_a_healthy_host_passes(simulated):
    found = simulated({4: 0.9, 5: 0.9, 6: 0.9, 7: 0.9}, {3: 0.5})
    assert (found.verdict, found.reason) == ("PASS", ""), "a busy sibling thread is not a finding"
    assert {(each.name, each.device) for each in found.numbers} == {
        (name, node) for name in ("host_memory", "host_compute") for node in ("numa0", "numa1")
    }


def test_a_socket_that_lacks_memory_channels_is_named(simulated):
    found = simulated({cpu: 0.7 for cpu in (4, 5, 6, 7)}, {})
    assert found.verdict == "WARN" and "numa1 is slow: host_memory" in found.reason


def test_a_core_at_its_lowest_clock_is_named(simulated):
    found = simulated({}, {6: 0.25})
    assert found.verdict == "WARN" and "numa1 CPU 6 is slow: host_compute" in found.reason


def test_every_numa_node_is_measured_with_as_many_cores(simulated, monkeypatch):
    monkeypatch.setattr(host_info, "cores_by_numa_node", lambda _: {0: [0, 1, 2, 3], 1: [4]})
    found = simulated({}, {})
    assert found.verdict == "PASS"
    assert found.facts["cores"] == {"numa0": 4, "numa1": 1}
    assert {len(cpus) for cpus in found.facts["measured_on"].values()} == {1}
