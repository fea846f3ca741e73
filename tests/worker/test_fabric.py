"""Network ports: those that are down or slow where others are not, new errors, and the way to the
GPUs.
"""

import re

import pytest

from gpuworker.accept import fabric, watches
from gpuworker.accept.checks import environment
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.kinds import KINDS, RESEAT, TICKET
from gpuworker.judgement.report import Report, Requested
from gpuworker.judgement.verdict import Check
from tests.helpers import gpu_node
from tests.helpers.cpu_worlds import verdict_on
from tests.helpers.sysfs_tree import add_adapter, add_pci, set_errors, set_port, write


@pytest.fixture
def tree(monkeypatch, tmp_path):
    """/sys of a node."""
    monkeypatch.setattr(fabric, "SYS", tmp_path)
    return tmp_path


def found(monkeypatch, gpus: int = 1) -> Check:
    gpu_node.install(monkeypatch, *[{}] * gpus)
    plan = Plan("cuda", gpus)
    return verdict_on(environment, environment.measure(plan), plan)


def test_a_node_without_adapters_has_no_finding(tree, monkeypatch):
    assert found(monkeypatch).verdict == "PASS"


def test_healthy_ports_have_no_finding_and_are_facts(tree, monkeypatch):
    for index in (0, 1, 2, 10):
        add_adapter(tree, index)
    assert found(monkeypatch).verdict == "PASS"
    ports = fabric.ports()
    assert [port.name for port in ports] == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_10/1"]
    assert {(p.up, p.rate_gbps, p.kind, p.firmware, p.numa_node) for p in ports} == {
        (True, 400.0, "MT4129", "28.39.1002", 0)
    }
    assert ports[0].errors == {"symbol_error": 0, "link_downed": 2, "out_of_sequence": 0}


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"state": "1: DOWN", "phys_state": "2: Polling"},
            r"mlx5_3/1: this network port is down, 7 like it are up",
        ),
        ({"state": "2: INIT"}, r"mlx5_3/1: this network port is down"),
        (
            {"rate": "100 Gb/sec (1X NDR)"},
            r"mlx5_3/1: this network port runs at 100 Gb/s, others like it at 400",
        ),
    ],
)
def test_a_port_unlike_its_siblings_fails(tree, monkeypatch, changes, pattern):
    for index in range(8):
        add_adapter(tree, index, **(changes if index == 3 else {}))
    check = found(monkeypatch)
    verdict, reason = check.verdict, check.reason
    assert verdict == "FAIL" and re.search(pattern, reason), reason


def test_ports_that_are_unused_by_design_have_no_finding(tree, monkeypatch):
    """The second half of the ports, a storage adapter of another kind, and a slower Ethernet port."""
    for index in range(4):
        add_adapter(
            tree, index, **({"state": "1: DOWN", "phys_state": "3: Disabled"} if index > 1 else {})
        )
    add_adapter(tree, 4, kind="MT41692", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    add_adapter(tree, 5, kind="EFA", link_layer="Unspecified", state="1: DOWN")
    assert found(monkeypatch).verdict == "PASS"
    assert len(fabric.ports()) == 5


def test_the_nearest_adapter_of_every_gpu(tree, monkeypatch):
    add_adapter(tree, 0, "pci0000:3a/0000:3a:01.0/0000:3c:00.0", numa=0)
    add_adapter(tree, 1, "pci0000:5a/0000:5a:01.0/0000:5c:00.0", numa=0)
    places = ("pci0000:3a/0000:3a:01.0/0000:0b:00.0", "pci0000:5a/0000:5a:01.0/0000:1b:00.0",
              "pci0000:3a/0000:3a:05.0/0000:2b:00.0", "pci0000:9a/0000:9a:01.0/0000:3b:00.0")  # fmt: skip
    for place, numa in zip(places, (0, 0, 0, 1), strict=True):
        add_pci(tree, place, numa)
    devices = {f"cuda:{index}": f"0000:{index}b:00.0" for index in range(4)}
    nearest = fabric.nearest(fabric.ports(), devices)
    assert list(nearest.values()) == [fabric.SWITCH, fabric.SWITCH, fabric.NUMA, fabric.FAR]
    (problem,) = found(monkeypatch, 4).problems
    assert (problem.kind, problem.parts) == ("far-adapter", ["cuda:3"])


def empty_report(inject: str = "") -> Report:
    return Report(
        "n", "p", "1", Requested("cpu", 0, "quick", inject=inject), "2026-01-05T10:00:00+00:00"
    )


def watched(changes: dict[str, str], tree, injected: str = "") -> list:
    report = empty_report(injected)
    with watches.watch(report):
        set_port(tree, 0, **changes)
    return [problem for check in report.checks for problem in check.problems]


@pytest.mark.parametrize(
    ("changes", "verdict", "pattern"),
    [
        ({"counters/symbol_error": "5"}, "WARN", r"mlx5_0/1: new errors .*: 5 symbol_error$"),
        ({"hw_counters/out_of_sequence": "7"}, "WARN", r"7 out_of_sequence"),
        ({"counters/link_downed": "3"}, "FAIL", r"mlx5_0/1: .* went down and came back"),
        (
            {"state": "1: DOWN", "counters/link_downed": "3"},
            "FAIL",
            r"mlx5_0/1: .* went down during the checks",
        ),
    ],
)
def test_what_changes_while_the_checks_run_is_named(tree, changes, verdict, pattern):
    add_adapter(tree, 0)
    (problem,) = watched(changes, tree)
    assert problem.verdict == verdict and re.search(pattern, problem.reason)
    assert KINDS[problem.kind].act.verb == TICKET and problem.parts == ["mlx5_0/1"]


def test_retransmissions_of_a_lossy_ethernet_are_no_finding(tree):
    add_adapter(tree, 0, link_layer="Ethernet")
    assert watched({"hw_counters/out_of_sequence": "7"}, tree) == []
    assert watched({"counters/symbol_error": "7"}, tree) != []


GPU, BRIDGE = "0000:3b:00.0", "0000:3a:01.0"


@pytest.fixture
def links(tree):
    """A GPU below a bridge; both have counted errors since the boot."""
    for place in (f"pci0000:3a/{BRIDGE}", f"pci0000:3a/{BRIDGE}/{GPU}"):
        write(
            add_pci(tree, place, 0),
            {"vendor": "0x10de", "class": "0x030200"} if GPU in place else {},
        )
    for address in (GPU, BRIDGE):
        set_errors(tree, address, correctable=900, nonfatal=2, fatal=1)
    return tree


@pytest.mark.parametrize(
    ("address", "totals", "verdict", "words"),
    [
        (GPU, {"correctable": 1500}, "WARN", "600 correctable"),
        (BRIDGE, {"correctable": 1500}, "WARN", "600 correctable"),
        (GPU, {"nonfatal": 3}, "WARN", "1 nonfatal"),
        (GPU, {"fatal": 2}, "FAIL", "1 fatal"),
    ],
)
def test_new_errors_of_a_pcie_link_name_its_address(links, address, totals, verdict, words):
    report = empty_report()
    with watches.watch(report):
        set_errors(links, address, **totals)
    (problem,) = [problem for check in report.checks for problem in check.problems]
    assert problem.verdict == verdict and problem.parts == [address] and words in problem.reason
    assert KINDS[problem.kind].act.verb == RESEAT


@pytest.mark.parametrize("totals", [{}, {"correctable": 950}], ids=["none", "a few repeats"])
def test_what_a_healthy_pcie_link_counts_is_no_finding(links, totals):
    report = empty_report()
    with watches.watch(report):
        set_errors(links, GPU, **totals)
    assert report.checks == []
