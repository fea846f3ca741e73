"""Differences between nodes with the same GPUs, whatever their checks found: versions, network
ports, NVLink domains, power limits, fingerprints.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from gpuworker.judgement.findings import Finding, Port, gpu_models, number, ports_of, text
from gpuworker.judgement.judge import Judged
from gpuworker.judgement.majority import majority
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN, Report

SOFTWARE = ("driver", "cuda", "torch")  # what changes the speed of a computation
FACTS = ("driver", "cuda", "nccl", "torch", "python", "kernel")
# Name -> list in the facts of the environment check, field of its items.
FIRMWARE = {
    "VBIOS": ("gpus", "vbios"),
    "InfoROM": ("gpus", "inforom"),
    "firmware of network adapters": ("ports", "firmware"),
}
FEWEST = 3  # nodes: two that differ do not show whose port is right
LISTS = "environment"  # the check that lists parts
PAIRS = "pair_bandwidth"
WARN_OF_PORT, FAIL_OF_PORT = 0.10, 0.02  # TCP alone reaches some percent of a port of 400 Gb/s
TOLERANCE = 0.05  # of a power limit: less power than that explains no slow GPU
MOST_WATTS = 1e6

Places = dict[tuple[str, str], str]  # node and device -> fingerprint


def differences(reports: list[Report]) -> tuple[list[Finding], list[str]]:
    """Nodes that differ from most nodes with the same GPUs, and notes where there is no most."""
    findings, notes = power_limits(reports), []
    for members in alike(reports):
        versions, without_majority = version_drift(members)
        findings += versions + port_differences(members) + nvlink_domains(members)
        notes += without_majority
    return findings, notes


class Software(NamedTuple):
    """What a node computes with, on how many nodes with the same GPUs, and what it has in words
    if most of these have another.
    """

    version: str
    nodes: int
    differs: str


def software_of(reports: list[Report]) -> dict[str, Software]:
    found = {}
    for members in alike(reports):
        own = {r.node: ", ".join(f"{f} {r.facts.get(f)}" for f in SOFTWARE) for r in members}
        counts = Counter(own.values())
        for node, version in own.items():
            count, rare = counts[version], 2 * counts[version] <= len(own)
            words = f"{version}, as {count} of {len(own)} nodes with the same GPUs"
            found[node] = Software(version, count, words * rare)
    return found


def alike(reports: list[Report]) -> Collection[list[Report]]:
    """Those of nodes with the same GPUs."""
    groups: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for report in reports:
        groups[tuple(gpu_models(report))].append(report)
    return groups.values()


def versions_of(report: Report) -> dict[str, str]:
    """Versions of software, of most GPUs and of all ports of the node; none that is not known."""
    found = {name: {str(report.facts.get(name) or "")} for name in FACTS}
    for name, (parts, field) in FIRMWARE.items():
        versions = Counter((text(e, "kind"), text(e, field)) for e in report.listed(parts))
        # the node has found a GPU that differs from its others
        known = dict(versions.most_common(1 if parts == "gpus" else None))
        found[name] = {f"{kind} {version}".strip() for kind, version in known if version}
    joined = {name: ", ".join(sorted(versions))[:200] for name, versions in found.items()}
    return {name: value for name, value in joined.items() if value}


def version_drift(reports: list[Report]) -> tuple[list[Finding], list[str]]:
    findings, notes = [], []
    versions = {report.node: versions_of(report) for report in reports}
    for fact in (*FACTS, *FIRMWARE):
        of = FIRMWARE.get(fact, ("",))[0]  # of some checks only reports with findings list parts
        nodes = [each.node for each in reports if not of or each.listed(of)]
        values = {node: versions[node].get(fact, "none") for node in nodes}
        usual, agree, odd = majority(values) if values else ("", 1, [])
        if not agree:
            counts = Counter(values.values()).most_common()
            several = ", ".join(f"{value} on {count}" for value, count in counts)
            notes.append(f"nodes with the same GPUs differ in {fact}: {several}")
            continue
        same = f"{agree} of {len(values)} nodes with the same GPUs have {usual}"
        for node in odd:
            words, measure = f"{fact} is {values[node]}; {same}", {"measure": fact}
            findings.append(Finding(WARN, "drift", words, node, "", "", "fleet", measure))
    return findings, notes


def port_differences(reports: list[Report]) -> list[Finding]:
    """Ports that are down, slower or missing where most nodes have them."""
    found = []
    for name, states, (kind, rate), same in _usual_ports(reports):
        for node, (own_kind, own_rate) in states.items() if rate else ():
            if not own_kind:
                verdict, what, words = WARN, "port-missing", "is missing"
            elif own_kind == kind and own_rate < rate:
                slow = f"runs at {own_rate:g} Gb/s"
                words, what = (slow, "port-slow") if own_rate else ("is down", "port-down")
                verdict = FAIL
            else:
                continue
            reason = f"this network port {words}; {same} have it at {rate:g} Gb/s"
            found.append(Finding(verdict, what, reason, node, name, found_by="fleet"))
    return found


def ports_alike(reports: list[Report]) -> dict[tuple[str, str], str]:
    """Node and port that is down or slow there as on most nodes with the same GPUs -> on which."""
    return {
        (node, name): same
        for members in alike(reports)
        for name, states, usual, same in _usual_ports(members)
        for node, state in states.items()
        if state == usual
    }


def _usual_ports(
    reports: list[Report],
) -> Iterator[tuple[str, dict[str, tuple[str, float]], tuple[str, float], str]]:
    """Name of a port, its state on each node, that on most nodes, and on how many."""
    listing = [r for r in reports if any("ports" in c.facts for c in r.checks if c.name == LISTS)]
    nodes = {report.node: ports_of(report) for report in listing}
    for name in dict.fromkeys(name for ports in nodes.values() for name in ports):
        states = {node: _state(ports.get(name)) for node, ports in nodes.items()}
        usual, count, _ = majority(states)
        if len(nodes) >= FEWEST and count:
            yield name, states, usual, f"{count} of {len(nodes)} nodes with the same GPUs"


def _state(port: Port | None) -> tuple[str, float]:
    """Adapter type and rate, 0 if the port is down or missing."""
    return (port.kind, port.rate_gbps if port.up else 0.0) if port else ("", 0.0)


def nvlink_domains(reports: list[Report]) -> list[Finding]:
    """Nodes of a rack that have joined no NVLink domain, or one of their own.

    A single HGX node has a domain of zeros (its fabric ends at the node), so only a difference from
    other nodes is a fault.
    """
    listed = {report.node: report.listed("gpus") for report in reports}
    nodes = {node: max(map(_domain, gpus)) for node, gpus in listed.items() if gpus}
    counts, found = Counter(nodes.values()), []
    joined = len(nodes) - counts[""]
    for node, domain in nodes.items():
        if not domain and joined and 2 * joined >= len(nodes):
            verdict, words = FAIL, f"its GPUs are in no NVLink domain; {joined} of {len(nodes)}"
            words += " nodes with the same GPUs are in one"
        elif domain and counts[domain] == 1 and joined > 2 and max(counts.values()) > 1:
            verdict, words = WARN, f"it is alone in its NVLink domain, {domain}"
            words += "; other nodes with the same GPUs share one"
        else:
            continue
        found.append(Finding(verdict, "fabric-manager", words, node, "", "environment", "fleet"))
    return found


def _domain(gpu: dict) -> str:
    """UUID and clique; "" for a GPU that has joined none."""
    cluster = text(gpu, "fabric_cluster")
    return f"{cluster} clique {gpu.get('fabric_clique')!s:.20}" if cluster.strip("0-") else ""


def slow_fabrics(worlds: Iterable[Judged], reports: Iterable[Report]) -> Iterator[Finding]:
    """Worlds whose nodes exchange far less than one of their network ports: the search compares
    nodes, so that it cannot see a network that is slow everywhere.
    """
    up = {each.node: [p.rate_gbps for p in ports_of(each).values() if p.up] for each in reports}
    for world in worlds:
        rates = [max(up.get(each.node) or [0.0]) for each in world.report.world.nodes]
        numbers = [m for check in world.checks for m in check.numbers if m.name == PAIRS]
        for m in numbers if min(rates) else ():
            share = 8 * m.value / min(rates)
            if share < WARN_OF_PORT and not m.refused:
                words = f"two nodes exchange {m.value:.3g} GB/s, {share:.1%} of one of their ports"
                verdict = FAIL if share < FAIL_OF_PORT else WARN
                shown = {"measure": m.name, "value": m.value}
                yield Finding(verdict, "slow-fabric", words, "", "", "bad_nodes", "world", shown)


def power_limits(reports: list[Report]) -> list[Finding]:
    """GPUs with fewer watts than most of their model: slow without a fault, and not in need of a
    repair.
    """
    by_model: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for report in reports:
        for gpu in report.listed("gpus"):
            watts = number(gpu, "power_limit_w", MOST_WATTS)
            model, device = text(gpu, "name"), text(gpu, "device")
            if watts and device and model:
                by_model[model][report.node, device] = watts
    found = []
    for gpus in by_model.values():
        usual = statistics.median_high(gpus.values())
        for place, watts in gpus.items():
            if watts < (1 - TOLERANCE) * usual:
                words = f"its power limit is {watts:g} W, that of most others of its model"
                words += f" {usual:g} W"
                found.append(Finding(WARN, "power-capped", words, *place, "environment", "fleet"))
    return found


def vote(reports: Iterable[Report]) -> tuple[list[Finding], int]:
    """Find silent data corruption by comparing the fingerprints of equal computations, and count
    those of which the group has one device.

    Devices of one group (same GPU model, driver, torch, library, dtype) must produce the same bits.
    A device that differs from the majority of its group FAILs; without a majority all are
    INCOMPLETE, since one of them is wrong. Fingerprints of different groups are not compared:
    another library may correctly produce other bits.
    """
    # check and group -> name -> fingerprints
    groups: dict[tuple[str, str], dict[str, Places]] = defaultdict(lambda: defaultdict(dict))
    for report in reports:
        for check in report.checks:
            of = check.facts.get("hash_group")
            for key, value in check.hashes.items():  # by "name" or "name device"
                name, _, device = key.partition(" ")
                group = str(of.get(device, "")) if isinstance(of, dict) else ""
                groups[check.name, group][name][report.node, device] = value
    findings, single = [], 0
    for (check, group), names in sorted(groups.items()):
        everyone = set().union(*names.values())
        for name, places in sorted(names.items()):
            single += len(places) == 1
            for verdict, kind, words, place in _unlike(name, places, everyone):
                reason = f"{words} ({group})"
                findings.append(Finding(verdict, kind, reason, *place, check, "fingerprint"))
    return findings, single


def _unlike(
    name: str, places: Places, everyone: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, str, tuple[str, str]]]:
    """Verdict, kind, words and place of what differs, or is missing where most others have it."""
    if 2 * len(places) > len(everyone):
        words = f"no fingerprint {name}, which {len(places)} like it have"
        for place in sorted(everyone - places.keys()):
            yield INCOMPLETE, "missing", words, place
    _, agree, odd = majority(places)
    if agree:
        verdict, kind, words = FAIL, "wrong-bits", f"differs from {agree} of {len(places)} devices"
    else:
        sizes = [str(size) for _, size in Counter(places.values()).most_common(5)]
        several = ", ".join(sizes[:4]) + ", …" * (len(sizes) > 4)
        words = f"has no majority: {len(places)} devices in groups of {several}"
        verdict, kind = INCOMPLETE, "no-majority"
    for place in odd:
        yield verdict, kind, f"fingerprint {name} {words}", place
