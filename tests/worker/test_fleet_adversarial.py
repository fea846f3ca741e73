"""Nodes that are broken, wrongly set, forged or only odd: what their owner wants to read of each.

A row changes the first of five healthy nodes of 8 GPUs, or several of them, and names the verdict
of the fleet with all its suspects: "node part: act", "n0" being left out. Each row is merged, and
posted to a collector over HTTP.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.accept.errors import PartError, problem_of
from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.http_handler import ReportServer
from gpuworker.fleet.report_sources import from_text
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement import registry
from gpuworker.judgement.fleet_report import json_text
from gpuworker.judgement.merge import merge
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN, Problem
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import changed, problem, with_problems, world_check, world_report
from tests.helpers.simulated_node import DEVICES, GPUS, REQUESTED, Hardware, xids
from tests.helpers.single_faults import FAULTS

NAMES = [f"n{index}" for index in range(5)]
ALL = range(len(NAMES))
BAD = 3
OTHER = f"GPU-{NAMES[1]}-{BAD}"
EXPECTED = Expected(names=NAMES, run_id="1", requested=REQUESTED)
H200 = "NVIDIA H200"
Change = Callable[[list[dict]], None]
Nodes = range | tuple[int, ...]


@functools.cache
def healthy() -> list[dict]:
    return [Hardware(name, index).report() for index, name in enumerate(NAMES)]


def node(*changes: Callable[[Hardware], object], of: Nodes = (0,)) -> Change:
    """Other hardware."""

    def change(reports: list[dict]) -> None:
        for index in of:
            hardware = Hardware(NAMES[index], index)
            for each in changes:
                each(hardware)
            reports[index] = hardware.report()

    return change


def gpu(*which: int, of: Nodes = (0,), **fields: object) -> Change:
    """What the driver says of GPUs."""
    return node(lambda h: [h.change(index, **fields) for index in which or (BAD,)], of=of)


def fault(name: str, *which: int) -> Change:
    """A fault of single_faults.py, at several GPUs."""
    return node(lambda h: [FAULTS[name].change(h, index) for index in which or (BAD,)])


def broken(words: str, *names: str) -> Change:
    """Checks that end with this error of CUDA on the bad GPU."""
    found = problem_of(PartError(DEVICES[BAD], RuntimeError(words)))
    return node(lambda h: h.broken.update(dict.fromkeys(names, found)))


def xid(code: int, age_s: float = 90.0) -> Change:
    event = {"code": code, "bus_id": f"0000:{BAD}b:00", "text": "", "age_s": age_s}
    return node(lambda h: setattr(h, "xids", [event]))


def during(code: int) -> Change:
    return node(lambda h: h.added.append(xids((h.gpus[BAD].uuid, code))))


def ports(change: Callable[[list], object], of: Nodes = (0,)) -> Change:
    return node(lambda h: change(h.ports), of=of)


def port(index: int, **fields: object) -> Callable[[list], None]:
    def change(found: list) -> None:
        found += [dataclasses.replace(found[0], name="mlx5_9/1")] * (index == len(found))
        found[index] = dataclasses.replace(found[index], **fields)

    return change


def number(
    name: str, value: object, *devices: str, of: Nodes = (0,), field: str = "value"
) -> Change:
    """Numbers of this name, of all devices or of these. A float is a share of what they are, a text
    another one.
    """

    def change(reports: list[dict]) -> None:
        for found in (
            m
            for i in of
            for c in reports[i]["checks"]
            for m in c["measurements"]
            if m["name"] == name
        ):
            if not devices or found["device"] in devices:
                found[field] = found[field] * value if isinstance(value, float) else value

    return change


def every(share: float, *prefixes: str, of: Nodes = (0,)) -> Change:
    """Numbers with these prefixes at a share."""

    def change(reports: list[dict]) -> None:
        for found in (m for i in of for c in reports[i]["checks"] for m in c["measurements"]):
            found["value"] *= share if found["name"].startswith(prefixes) else 1

    return change


def part_of(report: dict, name: str) -> dict:
    return next(check for check in report["checks"] if check["name"] == name)


def fact(name: str, key: str, value: object, device: str = "", of: Nodes = (0,)) -> Change:
    """A fact of a check, or that of one device."""

    def change(reports: list[dict]) -> None:
        for index in of:
            facts = part_of(reports[index], name)["facts"]
            (facts[key] if device else facts)[device or key] = value

    return change


def listed(key: str, value: object, *which: int, of: Nodes = (0,)) -> Change:
    """A field of GPUs as the environment check lists them, whatever else the report says."""

    def change(reports: list[dict]) -> None:
        for index in of:
            for place in which or range(GPUS):
                part_of(reports[index], "environment")["facts"]["gpus"][place][key] = value

    return change


def field(path: str, value: object) -> Change:
    def change(reports: list[dict]) -> None:
        reports[0] = changed(reports[0], path, value)

    return change


def said(name: str, verdict: str, kind: str, words: str, *parts: str) -> Change:
    """A problem that a check has found."""
    return lambda reports: (
        with_problems(reports[0], name, problem(verdict, kind, words, *parts)) and None
    )


def bits(*which: int, of: Nodes = (0,), group: str = "", by: int = 0) -> Change:
    """Other bits on these GPUs: each wrong in its own way, in the same, or those of another group."""

    def change(reports: list[dict]) -> None:
        for index in of:
            found = part_of(reports[index], "repeatability")
            for place in which or range(GPUS):
                own = [key for key in found["hashes"] if key.endswith(f" {DEVICES[place]}")]
                turn = by or (1 if group else place + 2)
                found["hashes"] |= {
                    key: found["hashes"][key][turn:] + found["hashes"][key][:turn] for key in own
                }
                found["facts"]["hash_group"][DEVICES[place]] = (
                    group or found["facts"]["hash_group"][DEVICES[place]]
                )

    return change


def two_models(reports: list[dict]) -> None:
    """Four of the GPUs are of another model, with the speed and the bits of that one."""
    fields = {"name": H200, "vbios": "96.01"}
    node(lambda h: [h.change(index, **fields) for index in range(4, 8)])(reports)
    reports[0]["facts"]["gpu_models"][4:] = [H200] * 4
    bits(4, 5, 6, 7, group="H200")(reports)
    for device in DEVICES[4:]:
        for name in ("memory_copy", "memory_triad"):
            number(name, 1.52, device)(reports)
        number("memory_tested", 134.0 / 76.0, device)(reports)
        fact("memory", "memory_gib", 139.8, device)(reports)
        fact("memory", "models", H200, device)(reports)
        part_of(reports[0], "links")["facts"]["links"][device]["name"] = H200


def software(torch: str, *of: int) -> Change:
    return lambda reports: [reports[i]["facts"].update(torch=torch) for i in of] and None


def without(name: str) -> Change:
    def change(reports: list[dict]) -> None:
        reports[0]["checks"] = [c for c in reports[0]["checks"] if c["name"] != name]

    return change


def copied(reports: list[dict]) -> None:
    """The report of n0 once more, with the names of n1."""
    other, own = copy.deepcopy(reports[0]), json.dumps(part_of(reports[1], "environment"))
    reports[1] = other | {"node": "n1", "pod": "accept-n1"}
    part_of(other, "environment").update(json.loads(own))


def standing(reports: list[dict]) -> None:
    """All GPUs of n0 have the numbers of the first."""
    found = [m for check in reports[0]["checks"] for m in check["measurements"]]
    first = {m["name"]: m["value"] for m in found if m["device"] == DEVICES[0]}
    for each in found:
        if each["device"] in DEVICES:
            each["value"] = first[each["name"]]


def renamed(reports: list[dict]) -> None:
    """The GPUs of n0 under the name of n1."""
    reports[1] = copy.deepcopy(reports[0]) | {"node": "n1", "pod": "accept-n1"}


def moved(reports: list[dict]) -> None:
    listed("uuid", OTHER, BAD)(reports)


def world(*problems: dict, ranks: dict[str, list[int]] | None = None, **numbers: float) -> Change:
    ranks = ranks or {name: [index] for index, name in enumerate(NAMES)}
    count = sum(map(len, ranks.values()))
    check = world_check("bad_nodes", *problems, ranks=count, **numbers)
    return lambda reports: reports.append(world_report(ranks, check, run_id="1"))


def both(*changes: Change) -> Change:
    return lambda reports: [change(reports) for change in changes] and None


GPU, EVERY = f"cuda:{BAD}", f"all {GPUS} GPUs"
RMA, RESET, REBOOT, RESEAT = (f"{GPU}: {act}" for act in ("RMA", "reset", "reboot", "reseat"))
AGAIN, SET, TICKET = f"{GPU}: test again", f"{GPU}: configure", f"{GPU}: open a ticket"
NODE_AGAIN, NO_REPORT = ": test again", ": start its pod"
LINK = "cuda:0→cuda:1"
ROWS: dict[str, tuple] = {
    # Errors of CUDA name their GPU and have an act, with or without an Xid.
    **{f"CUDA: {words} in {check}": (broken(f"CUDA error: {words}", check), FAIL, RESET)
       for words in ("uncorrectable ECC error encountered", "unspecified launch failure")
       for check in ("compute", "memory", "links", "repeatability")},
    "CUDA: busy": (broken("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "compute"),
        INCOMPLETE, RESET),
    "CUDA: out of memory": (broken("CUDA error: out of memory", "memory"), INCOMPLETE, AGAIN),
    "CUDA: a code that nobody knows": (broken("CUDA error: odd", "links"), INCOMPLETE, TICKET),
    "the driver hangs": (said("compute", INCOMPLETE, "driver-hangs", "hangs"), INCOMPLETE, ": reboot"),
    # Xids: an act per code; a program's own are no reason to reboot.
    **{f"Xid {code}": (xid(code), FAIL, RESET) for code in (46, 48, 63, 64, 94, 95, 109, 119, 143, 158)},
    **{f"Xid {code}": (xid(code), FAIL, REBOOT) for code in (79, 121, 159)},
    **{f"Xid {code}": (xid(code), FAIL, RESEAT) for code in (74, 136)},
    **{f"Xid {code} of a program before": (xid(code), PASS) for code in (13, 31, 43, 45)},
    **{f"Xid {code} of a program during the test": (during(code), WARN, AGAIN) for code in (13, 31, 45)},
    "Xid 48 of yesterday": (xid(48, 86400.0), WARN, RESET),
    # Memory.
    "SDC on five GPUs": (bits(0, 1, 2, 5, 7), FAIL, *(f"cuda:{i}: RMA" for i in (0, 1, 2, 5, 7))),
    "two bad GPUs": (fault("wrong products", 1, 6), FAIL, "cuda:6: RMA"),
    "a tenth of the memory was tested": (number("memory_tested", 0.1), INCOMPLETE, f"{EVERY}: test again"),
    "GPUs of 8 GiB": (
        both(fact("memory", "memory_gib", dict.fromkeys(DEVICES, 8.0)), number("memory_tested", 0.1)),
        FAIL, f"{EVERY}: open a ticket",
    ),
    "a GPU with half of its memory": (
        both(fact("memory", "memory_gib", 39.8, GPU), number("memory_tested", 0.5, GPU)), FAIL, RMA,
    ),
    "row remap pending": (gpu(remap_pending=True), FAIL, RESET),
    "PCIe replays before the test": (gpu(pcie_replays=5), PASS),
    # Numbers above physics, without evidence, or of another unit.
    **{f"{name} of {value}": (number(name, value, device), INCOMPLETE, f"{part}: test again")
       for value in (None, -1, 0, 1e30) for name, device, part in (
           ("gemm_fp32", GPU, GPU), ("gemm_bf16", GPU, GPU), ("gemm_fp8", GPU, GPU), ("memory_copy", GPU, GPU),
           ("link_h2d", GPU, GPU), ("link_peer", LINK, "cuda:0↔cuda:1"), ("tokens_per_s", GPU, GPU))},
    **{f"without {name}": (without(name), INCOMPLETE, NODE_AGAIN) for name in registry.node_checks()},
    **{f"{path} is {value!r}": (field(path, value), INCOMPLETE, NODE_AGAIN) for path, value in (
        ("checks/1/measurements/0/value", "fast"), ("checks/1/measurements/0/value", ...), ("checks/2/facts", []),
        ("requested/gpus", "8"), ("started", "yesterday"), ("checks/0/name", ""), ("facts", None),
        ("scope", "rack"), ("schema_version", "5"), ("checks/5/hashes", {"a": 1}), ("run_id", ...), ("checks", []))},
    **{f"{check} without {key}": (fact(check, key, {}), INCOMPLETE, NODE_AGAIN) for check, key in (
        ("compute", "kept"), ("memory", "kept"), ("host", "compared"), ("memory", "memory_gib"),
        ("repeatability", "hash_group"), ("training", "ranks"), ("environment", "gpus_seen"))},
    "a report of days before": (field("started", "2026-01-01T10:00:00+00:00"), INCOMPLETE, NODE_AGAIN),
    "the numbers of another node": (copied, INCOMPLETE, NODE_AGAIN, "n1: test again"),
    "equal numbers of one kind": (number("gemm_bf16", 700), PASS),
    "a clock that stands": (standing, INCOMPLETE, NODE_AGAIN),
    "PCIe in Gb/s": (number("link_h2d", 8.0), INCOMPLETE, f"{EVERY}: test again"),
    "a copy that did not wait": (number("link_h2d", 63_000, GPU), INCOMPLETE, AGAIN),
    "NVLink of 3,040 GB/s": (number("link_peer", 8.0, LINK), INCOMPLETE, "cuda:0↔cuda:1: test again"),
    "all-reduce of 2,840 GB/s": (number("all_reduce_busbw", 8.0), INCOMPLETE, NODE_AGAIN),
    "products above the data sheet": (number("gemm_bf16", 1400, GPU), INCOMPLETE, AGAIN),
    "mfu of 1.19": (number("mfu", 1.19 / 0.24, GPU), INCOMPLETE, AGAIN),
    "another unit": (number("gemm_bf16", "GFLOP/s", GPU, field="unit"), INCOMPLETE, AGAIN),
    "a number of another GPU": (number("gemm_bf16", "cuda:8", GPU, field="device"), INCOMPLETE, AGAIN),
    "no links listed": (fact("links", "links", {}), WARN, f"{EVERY}: configure"),
    "no GPUs listed": (fact("environment", "gpus", []), WARN, ": configure"),
    "no telemetry": (fact("compute", "telemetry", {}), WARN, f"{EVERY}: configure"),
    # Slow parts.
    "triad of 70 %": (number("memory_triad", 0.7, GPU), FAIL, AGAIN),
    "the whole fleet at 70 %": (
        every(0.7, "gemm", "memory_c", "memory_tr", of=ALL),
        FAIL, *(f"{name} {EVERY}: open a ticket" for name in NAMES),
    ),
    "a node of 60 %": (node(lambda h: setattr(h, "compute", [0.6] * GPUS)), FAIL, f"{EVERY}: open a ticket"),
    "application clocks": (
        node(lambda h: FAULTS["slow GPU"].change(h, BAD), lambda h: h.change(BAD, clock_reasons=2)), FAIL, SET,
    ),
    "another program on a slow GPU": (
        node(lambda h: FAULTS["slow GPU"].change(h, BAD), lambda h: h.change(BAD, programs=("a (process 1)",))),
        FAIL, AGAIN,
    ),
    "capped power": (fault("capped power"), FAIL, SET),
    "all nodes capped alike": (gpu(*range(GPUS), power_limit_w=500.0, power_default_w=500.0, of=ALL), PASS),
    "noise of 3 %": (every(0.97, "gemm", "link"), PASS),
    **{f"{name} at half": (number(name, 0.5, device), FAIL, act) for name, device, act in (
        ("gemm_fp32", GPU, TICKET), ("gemm_bf16", GPU, TICKET), ("memory_copy", GPU, AGAIN), ("link_h2d", GPU, RESEAT),
        ("link_d2h", GPU, RESEAT), ("link_peer", LINK, "cuda:0↔cuda:1: reseat"))},
    "slow training of one GPU": (number("tokens_per_s", 0.5, GPU), WARN, TICKET),
    "slow storage for one node": (number("storage_read", 0.5), WARN, "out: open a ticket"),
    "one slow link": (fault("one NVLink"), FAIL, f"cuda:{BAD}↔cuda:{BAD + 1}: reseat"),
    "all NVLinks of a GPU inactive": (fault("NVLinks of a GPU"), FAIL, RESEAT),
    # Other software and other models are no fault of a part.
    "torch 2.5, slower fp8": (
        both(every(0.94, "gemm_fp8"), field("facts/torch", "2.5.1")), WARN, f"{EVERY}: configure",
    ),
    "two nodes with torch 2.5, slower fp8": (
        both(every(0.88, "gemm_fp8", of=(0, 1)), software("2.5", 0, 1)),
        WARN, *(f"{n} {EVERY}: configure" for n in NAMES[:2]),
    ),
    "three versions of torch": (
        both(every(0.88, "gemm_fp8", of=(0, 1)), software("2.5", 0, 1), software("2.7", 2)),
        WARN, *(f"{n} {EVERY}: configure" for n in NAMES[:2]),
    ),
    "another driver": (field("facts/driver", "575.51"), WARN, ": configure"),
    "two models in a node": (two_models, WARN, ": configure"),
    "bits of a group of its own": (bits(group="cuBLAS 13"), PASS),
    "the same wrong bits on five GPUs": (bits(0, 1, 2, 5, 7, by=3), FAIL, *(f"cuda:{i}: RMA" for i in (0, 1, 2, 5, 7))),
    "bits of a node that differ": (bits(), FAIL, f"{EVERY}: open a ticket"),
    "bits that two nodes share": (bits(of=(0, 1)), FAIL, *(f"{n} {EVERY}: open a ticket" for n in NAMES[:2])),
    # NVLink domains across nodes.
    "no NVLink domain": (
        both(listed("fabric_cluster", "1111", of=ALL), listed("fabric_cluster", "0000-0000")), FAIL, ": reboot",
    ),
    "another NVLink domain": (
        both(listed("fabric_cluster", "1111", of=ALL), listed("fabric_cluster", "2222")), WARN, ": reboot",
    ),
    "no domain anywhere": (listed("fabric_cluster", "0000-0000", of=ALL), PASS),
    "fabric: insufficient resources": (
        gpu(*range(GPUS), fabric_state=3, fabric_status=3), FAIL, f"{EVERY}: reboot",
    ),
    # Ports that are design, and those that are not.
    "storage rails at half speed, everywhere": (ports(lambda p: [port(i, rate_gbps=200.0)(p) for i in (6, 7)], ALL),
        WARN),
    "a ninth port that nobody uses": (ports(port(GPUS, up=False, rate_gbps=0.0), ALL), WARN),
    "two slow ports": (ports(lambda p: [port(i, rate_gbps=200.0)(p) for i in (6, 7)]),
        FAIL, *(f"mlx5_{i}/1: open a ticket" for i in (6, 7))),
    "one port fewer": (ports(list.pop), WARN, "mlx5_7/1: open a ticket"),
    "a port down": (ports(port(2, up=False)), FAIL, "mlx5_2/1: open a ticket"),
    "RDMA on half of the nodes": (ports(list.clear, (0, 1)),
        WARN, *(f"{n} {EVERY[:5]} ports: open a ticket" for n in ("n0", "n1"))),
    # Identity.
    **{f"the node {name!r}": (field("node", name), INCOMPLETE, NO_REPORT, f"{name}: configure")
       for name in ("x0", "x 0", "X0")},
    "a serial that says nothing": (listed("serial", "N/A", of=ALL), PASS),
    "a serial of two nodes": (listed("serial", "1650-n1", 0),
        INCOMPLETE, "cuda:0: test again", "n1 cuda:0: test again"),
    "a GPU of another node": (moved, INCOMPLETE, AGAIN, f"n1 {GPU}: test again"),
    "the same GPUs under two names": (renamed, INCOMPLETE, f"{EVERY}: test again", f"n1 {EVERY}: test again"),
    "a PCI address twice": (listed("bus_id", "0000:0b:00.0", BAD), INCOMPLETE, NODE_AGAIN),
    "an H100 that claims to be an L4": (listed("name", "NVIDIA L4", BAD), INCOMPLETE, AGAIN),
    "one more node": (lambda reports: reports.append(Hardware("x1", 9).report()), INCOMPLETE, "x1: configure"),
    "a name like another": (field("node", "N1\u200b"), INCOMPLETE, NO_REPORT, "n1: test again", "N1\u200b: configure"),
    "a clock that nothing sets": (fact("environment", "clock_synchronised", False), WARN, ": configure"),
    # The report itself.
    "another run": (field("run_id", "0"), INCOMPLETE, NO_REPORT),
    "a newer release": (field("schema_version", 99), INCOMPLETE, NODE_AGAIN),
    "a rehearsal": (field("requested/device", "cpu"), INCOMPLETE, NODE_AGAIN),
    "another level": (field("requested/level", "prolog"), INCOMPLETE, NODE_AGAIN),
    "an injected fault": (field("requested/inject", "slow-gpu"), INCOMPLETE, NODE_AGAIN),
    "of the future": (field("started", "2099-01-01T00:00:00+00:00"), INCOMPLETE, ": configure"),
    "in no time": (field("duration_s", 0.2), INCOMPLETE, ": configure"),
    "seven GPUs seen": (fault("lost, with an Xid"), FAIL, f"GPU 0000:{BAD}b:00: reboot"),
    # Things that are no fault of the node.
    "busy before the test": (gpu(busy_percent=30), WARN, AGAIN),
    "MPS": (fact("environment", "mps_share", "50"), WARN, NODE_AGAIN),
    "persistence mode off everywhere": (gpu(*range(GPUS), persistence=False, of=ALL), PASS),
    "a volume of 40 ms": (number("storage_read_p99", 40), WARN, "out: open a ticket"),
    "a full volume": (fault("full volume"), FAIL, "out: configure"),
    # Checks across nodes.
    "a world that passed": (world(), PASS),
    "a network of 1 %": (world(pair_bandwidth=0.5), FAIL, "fleet: configure"),
    "a network of 6 %": (world(pair_bandwidth=3.0), WARN, "fleet: configure"),
    "a network without a number": (world(pair_bandwidth=-1.0), INCOMPLETE, "fleet: test again"),
    "a link between nodes": (world(problem(FAIL, "bad-link", "n0 and n1", "node n0", "node n1")),
        FAIL, ": open a ticket", "n1: open a ticket"),
    "a rank of two nodes": (world(ranks={"n0": [0, 1], "n1": [1]}), INCOMPLETE, "fleet: test again"),
    "a bad node": (world(problem(FAIL, "bad-node", "n0", "node n0")), FAIL, ": open a ticket"),
    "a world of other nodes": (world(ranks={"old-0": [0], "old-1": [1]}), INCOMPLETE, "fleet: configure"),
    "other nodes that failed": (
        world(problem(FAIL, "bad-node", "old-1", "node old-1"), ranks={"old-0": [0], "old-1": [1]}),
        INCOMPLETE, "fleet: configure",
    ),
    "a node without a rank": (world(ranks={"n0": [], "n1": [0, 1]}), INCOMPLETE, "fleet: test again"),
}  # fmt: skip


def reports_of(name: str) -> list[dict]:
    reports = copy.deepcopy(healthy())
    ROWS[name][0](reports)
    return reports


def judged(fleet: dict) -> tuple[str, set[str]]:
    found = set()
    for each in fleet["suspects"]:
        part = f"{each['node']} {each['device']}".strip() or "fleet"
        found.add(f"{part}: {each['act']}")
    return fleet["verdict"], found


def wanted(name: str) -> tuple[str, set[str]]:
    _, verdict, *suspects = ROWS[name]
    named = {
        each
        if each.lower().startswith(("n0 ", "x", "n1", "n2", "n3", "n4", "fleet"))
        else f"n0 {each}"
        for each in suspects
    }
    return verdict, {each.replace(" :", ":") for each in named}


def fleet_of(reports: list[dict], expected: Expected) -> dict:
    """The result of merging the reports."""
    sources = [s for report in reports for s in from_text("a file", json.dumps(report).encode())]
    return json.loads(json_text(merge(sources, expected)))


def posted(reports: list[dict], expected: Expected, folder: Path) -> tuple[dict, set[str]]:
    """The result of a collector, and the nodes whose report it refused."""
    handler = type("Handler", (CollectorHandler,), {"store": ReportStore(folder, expected)})
    refused = set()
    with ReportServer(0, handler) as server:
        waits = {"poll_interval": 0.01}
        threading.Thread(target=server.serve_forever, kwargs=waits, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for report in reports:
            try:
                urllib.request.urlopen(f"{url}/reports", json.dumps(report).encode(), 30).close()
            except urllib.error.HTTPError as error:
                assert error.code in (400, 409)
                refused.add(report.get("node"))
        with urllib.request.urlopen(f"{url}/report.json", timeout=30) as answer:
            found = json.load(answer)
        server.shutdown()
    return found, refused


@pytest.mark.parametrize("name", ROWS)
def test_the_owner_reads_what_is_right(name: str, tmp_path: Path) -> None:
    reports = reports_of(name)
    assert judged(fleet_of(reports, EXPECTED)) == wanted(name)
    found, refused = posted(reports, EXPECTED, tmp_path)
    assert judged(found)[0] == wanted(name)[0]
    assert refused or judged(found)[1] == wanted(name)[1]


def test_there_are_enough_rows() -> None:
    assert len(ROWS) >= 177 and len(healthy()) == len(NAMES)
    assert {FAIL, INCOMPLETE, WARN, PASS} == {row[1] for row in ROWS.values()}
    assert isinstance(problem_of(RuntimeError("x")), Problem)
