"""The fleet report as one HTML page that loads nothing: findings first, then every number of every device."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import (
    Distribution,
    Finding,
    FingerprintGroup,
    Fleet,
    Node,
    Point,
    World,
    check_names,
    describe_coverage,
    worst_verdict,
)
from gpuworker.fleet.formats import plots
from gpuworker.fleet.formats.table import SHORT
from gpuworker.runtime import svg_plot

MOST_FINDINGS = 500
MOST_OPEN_ROWS = 32  # a table of more nodes is folded
MOST_MATRICES = 8
SYMBOLS = {PASS: "✓", WARN: "!", FAIL: "✗", INCOMPLETE: "?", SKIP: "–"}

STYLE = svg_plot.STYLE + Path(__file__).with_name("page.css").read_text()


def page(fleet: Fleet) -> str:
    sections = (_head, _findings, _nodes, _worlds, _distributions, _pairs, _curves, _fingerprints)
    parts = [*(section(fleet) for section in sections), _legend()]
    title = escape(f"{fleet.verdict}: {describe_coverage(fleet)}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _head(fleet: Fleet) -> str:
    verdict, nodes = fleet.verdict, fleet.nodes
    tiles = "".join(
        f'<div class="tile"><b class="{name}">{SYMBOLS[name]} {fleet.count(name)}</b>{name}</div>'
        for name in (PASS, WARN, FAIL, INCOMPLETE, SKIP)
        if fleet.count(name)
    )
    missing = (fleet.coverage.nodes_expected or 0) - fleet.coverage.nodes_reported
    if missing > 0:
        tiles += f'<div class="tile"><b class="{INCOMPLETE}">{SYMBOLS[INCOMPLETE]} {missing}</b>not reported</div>'
    about = [describe_coverage(fleet)]
    for what, values in (
        ("run", {n.run_id for n in nodes}),
        ("level", {n.level for n in nodes}),
        ("GPU", {model for n in nodes for model in n.models if model != "cpu"}),
    ):
        if values:
            about.append(f"{what} {', '.join(sorted(values))}")
    if nodes:
        about.append(f"started {min(n.started for n in nodes)}")
    reason = f"<p>{escape(fleet.reason)}</p>" if fleet.reason else ""
    banner = '<div class="banner">CPU rehearsal: no GPU was tested.</div>' if fleet.rehearsal else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in fleet.notes)
    return (
        f'<h1>GPU acceptance</h1>{banner}<div class="head {verdict}">'
        f'<div class="big">{SYMBOLS[verdict]} {verdict}</div></div>{reason}'
        f'<p class="dim">{escape(" · ".join(about))}</p><div class="tiles">{tiles}</div>{notes}'
    )


def _findings(fleet: Fleet) -> str:
    """One row per part: all findings of one device with the same verdict share a row."""
    parts: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in fleet.findings[:MOST_FINDINGS]:
        parts[finding.verdict, finding.node, finding.device].append(finding)
    if not parts:
        return ""
    rows = "".join(
        f'<tr>{_verdict(verdict)}<td class="n">{escape(node or "fleet")}</td>'
        f"<td>{escape(device)}</td><td>{'<br>'.join(escape(_sentence(f)) for f in found)}</td></tr>"
        for (verdict, node, device), found in parts.items()
    )
    rest = len(fleet.findings) - MOST_FINDINGS
    more = f'<p class="dim">{rest} more findings are in /report.json</p>' if rest > 0 else ""
    header = "".join(f"<th>{name}</th>" for name in ("Verdict", "Node", "Device", "Finding"))
    return f'<h2>Findings</h2><div class="scroll"><table class="findings"><tr>{header}</tr>{rows}</table></div>{more}'


def _sentence(finding: Finding) -> str:
    return f"{finding.check and finding.check + ': '}{finding.reason} [{finding.found_by}]"


def _nodes(fleet: Fleet) -> str:
    if not fleet.nodes:
        return ""
    squares = "".join(
        f'<span class="{n.verdict}" title="{escape(f"{n.node}: {n.verdict}")}"><i>{SYMBOLS[n.verdict]}</i></span>'
        for n in fleet.nodes
    )
    squares += "".join(
        f'<span class="INCOMPLETE" title="{escape(f"{name}: no report")}"><i>?</i></span>'
        for name in fleet.coverage.missing
    )
    header = "".join(f"<th>{escape(name)}</th>" for name in ("Node", "Verdict", *fleet.checks, "Started"))
    rows = "".join(_node_row(node, fleet.checks) for node in fleet.nodes)
    table = f'<div class="scroll"><table><tr>{header}</tr>{rows}</table></div>'
    opened = " open" if len(fleet.nodes) <= MOST_OPEN_ROWS else ""
    return (
        f'<h2>Nodes</h2><div class="map">{squares}</div>'
        f"<details{opened}><summary>Checks of every node</summary>{table}</details>"
    )


def _node_row(node: Node, checks: list[str]) -> str:
    lost = f"<br>pod no longer exists, last seen {escape(node.last_seen)}" if node.last_seen else ""
    started = escape(node.started) + lost
    name = f'<td class="n" title="{escape(node.pod)}">{escape(node.node)}</td>'
    return f'<tr>{name}{_verdict(node.verdict)}{_check_cells(node, checks)}<td class="n dim">{started}</td></tr>'


def _worlds(fleet: Fleet) -> str:
    """One row per run of cross-node checks."""
    if not fleet.worlds:
        return ""
    checks = check_names(fleet.worlds)
    header = "".join(f"<th>{escape(name)}</th>" for name in ("Ranks", "Verdict", *checks, "Started"))
    rows = "".join(
        f'<tr><td class="n" title="{escape(", ".join(world.nodes))}">{escape(world.name)}</td>{_verdict(world.verdict)}'
        f'{_check_cells(world, checks)}<td class="n dim">{escape(world.started)}</td></tr>'
        for world in fleet.worlds
    )
    return f'<h2>Cross-node checks</h2><div class="scroll"><table><tr>{header}</tr>{rows}</table></div>'


def _check_cells(result: Node | World, checks: list[str]) -> str:
    found = result.checks
    return "".join(_verdict(found[name], SHORT) if name in found else "<td></td>" for name in checks)


def _verdict(verdict: str, words: Mapping[str, str] | None = None) -> str:
    return f'<td class="v {verdict}">{SYMBOLS[verdict]} {(words or {}).get(verdict, verdict)}</td>'


def _distributions(fleet: Fleet) -> str:
    cards = "".join(_card(dataclasses.replace(d, points=_with_node_findings(d, fleet))) for d in fleet.distributions)
    return f'<h2>Measurements, one point per device</h2><div class="wide">{cards}</div>' if cards else ""


def _with_node_findings(d: Distribution, fleet: Fleet) -> list[Point]:
    """The points with the verdicts of all findings about them. Node checks write "cuda:3: gemm_bf16 is …"."""
    found = [f for f in fleet.findings if f.check == d.check and f.verdict in (FAIL, WARN)]
    reasons = {node: [f for f in found if f.node == node] for node in {f.node for f in found}}

    def verdict(point: Point) -> str:
        about = f"{point.device or 'node'}: {d.name} "
        verdicts = [
            f.verdict
            for f in reasons.get(point.node, ())
            if about in f.reason or (f.device == point.device and f.reason.startswith(f"{d.name} "))
        ]
        return worst_verdict([point.verdict, *verdicts])

    return [Point(point.node, point.device, point.value, verdict(point)) for point in d.points]


def _card(d: Distribution) -> str:
    one = len(d.points) == 1
    spread = f"median {d.median:.4g} {d.unit} · MAD {d.mad:.2g} · {len(d.points)} values"
    facts = [f"{d.median:.4g} {d.unit}" if one else spread]
    if d.limit is not None:
        facts.append(f"limit {d.limit:.4g}")
    facts.append(d.limit_source.replace("none: ", "no limit: "))
    if d.model not in ("cpu", "unknown"):
        facts.append(d.model)
    direction = {"higher": "higher is better", "lower": "lower is better"}.get(d.better, "")
    text = escape(" · ".join(fact for fact in [*facts, direction] if fact))
    head = f'<h3>{escape(d.check)} · {escape(d.name)}</h3><span class="dim">{escape(d.unit)}</span>'
    plot = "" if one else plots.strip_plot(d)
    return f'<div class="card"><div class="row">{head}</div>{plot}<p class="dim">{text}</p></div>'


def _pairs(fleet: Fleet) -> str:
    """Matrices of device pairs ("cuda:0→cuda:1"): the median of all nodes, then each node with findings."""
    parts = []
    for d in fleet.distributions:
        matrices: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for point in d.points:
            source, arrow, target = point.device.partition("→")
            if arrow:
                matrices[point.node][source, target] = point.value
                values[source, target].append(point.value)
        if not values:
            continue
        median = {pair: statistics.median(found) for pair, found in values.items()}
        cards = [(f"median of {len(matrices)} nodes", median)] if len(matrices) > 1 else []
        outliers = [f.node for f in fleet.findings if f.check == d.check]
        shown = list(dict.fromkeys([*(node for node in outliers if node in matrices), *matrices]))
        shown = shown if len(matrices) == 1 else [node for node in shown if node in outliers]
        cards += [(node, matrices[node]) for node in shown[:MOST_MATRICES]]
        body = "".join(
            f'<div class="card"><h3>{escape(title)}</h3>{plots.heat_map(pairs, d.unit)}</div>' for title, pairs in cards
        )
        heading = f"{escape(d.name)} between devices, {escape(d.unit)}, from row to column"
        parts.append(f'<h2>{heading}</h2><div class="wide">{body}</div>')
    return "".join(parts)


def _curves(fleet: Fleet) -> str:
    groups = defaultdict(list)
    for c in fleet.curves:
        groups[c.check, c.name, c.unit].append(c)
    cards = ""
    for (check, name, unit), several in groups.items():
        spread = f"median and range of {len(several)} nodes"
        head = f'<div class="row"><h3>{escape(check)} · {escape(name)}</h3><span class="dim">{spread}</span></div>'
        cards += f'<div class="card">{head}{plots.curve_plot(name, unit, several)}</div>'
    return f'<h2>Bandwidth by message size</h2><div class="wide">{cards}</div>' if cards else ""


def _fingerprints(fleet: Fleet) -> str:
    if not fleet.fingerprints:
        return ""
    rows = "".join(
        f'<tr><td>{escape(g.name)}</td><td>{g.agree} of {g.devices}</td><td class="{_colour(g)}">'
        f"{escape(_mismatched(g))}</td><td>{escape(g.group)}</td></tr>"
        for g in fleet.fingerprints
    )
    header = "".join(f"<th>{name}</th>" for name in ("Fingerprint", "Equal", "Different", "Group of devices"))
    return f'<h2>Fingerprints</h2><div class="scroll"><table><tr>{header}</tr>{rows}</table></div>'


def _mismatched(group: FingerprintGroup) -> str:
    if group.devices == 1:
        return "not compared: one device"
    return ", ".join(group.mismatched[:20]) + " …" * (len(group.mismatched) > 20) or "none"


def _colour(group: FingerprintGroup) -> str:
    return SKIP if group.devices == 1 else FAIL if group.mismatched else PASS


def _legend() -> str:
    return """<h2>How to read this page</h2>
<p>PASS: everything that was requested was measured and is within its limits. WARN: near a limit, or slightly worse than
the fleet. FAIL: a proven fault. INCOMPLETE: a measurement or a report is missing. SKIP: does not apply.</p>
<p class="dim">In the plots the solid line is the median, dashed lines are limits, and large coloured points have
findings. Hover over a point to see its name. GB is 10<sup>9</sup> bytes, KiB is 2<sup>10</sup> bytes.</p>"""
