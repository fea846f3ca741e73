"""Network ports that are down, slower or missing on a node, where most nodes with the same GPUs
have them.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.outliers import gpu_models
from gpuworker.judgement.report import FAIL, WARN, Report

FEWEST = 3  # nodes: two that differ do not show which one is right


def port_differences(reports: list[Report]) -> list[Finding]:
    groups: dict[tuple[str, ...], dict[str, dict[str, dict]]] = defaultdict(dict)
    for report in reports:
        groups[tuple(gpu_models(report))][report.node] = ports_of(report)
    return [
        finding
        for nodes in groups.values()
        if len(nodes) >= FEWEST
        for finding in _differences(nodes)
    ]


def _differences(nodes: dict[str, dict[str, dict]]) -> list[Finding]:
    """`nodes`: node -> port -> its facts."""
    found = []
    for name in dict.fromkeys(name for ports in nodes.values() for name in ports):
        states = Counter(_state(ports.get(name)) for ports in nodes.values())
        usual, count = states.most_common(1)[0]
        if usual is None or not usual[1] or 2 * count <= len(nodes):
            continue
        kind, rate = usual
        same = f"{count} of {len(nodes)} nodes with the same GPUs have it at {rate:g} Gb/s"
        for node, ports in nodes.items():
            state = _state(ports.get(name))
            if state is None:
                words = f"this network port is missing; {same}"
                found.append(Finding(WARN, "port-missing", words, node, name, found_by="fleet"))
            elif state[0] == kind and state[1] < rate:
                words = f"runs at {state[1]:g} Gb/s" if state[1] else "is down"
                kind = "port-slow" if state[1] else "port-down"
                found.append(
                    Finding(
                        FAIL,
                        kind,
                        f"this network port {words}; {same}",
                        node,
                        name,
                        found_by="fleet",
                    )
                )
    return found


def _state(port: dict | None) -> tuple[str, float] | None:
    """Adapter type and rate, 0 if the port is down."""
    return port and (port["kind"], port["rate_gbps"] if port["up"] else 0.0)


def ports_of(report: Report) -> dict[str, dict]:
    """The ports that the environment check lists."""
    found = {}
    for port in report.listed("ports"):
        if isinstance(name := port.get("name"), str) and isinstance(port.get("kind"), str):
            rate = port.get("rate_gbps")
            rate = float(rate) if isinstance(rate, int | float) and 0 < rate < 1e6 else 0.0
            found[name[:100]] = {
                "kind": port["kind"],
                "up": port.get("up") is True,
                "rate_gbps": rate,
            }
    return found
