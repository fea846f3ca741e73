"""The result as one page that needs nothing else: suspects first, then every number of every device."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import Distribution, Finding, Fleet, Node, Point, Vote, coverage_text, worst
from gpuworker.fleet.formats import plots
from gpuworker.fleet.formats.table import SHORT

SHOWN_FINDINGS = 500
OPEN_TABLE = 32  # nodes; a longer table is folded
MATRICES = 8
SYMBOLS = {PASS: "✓", WARN: "!", FAIL: "✗", INCOMPLETE: "?", SKIP: "–"}

STYLE = Path(__file__).with_name("page.css").read_text()


def page(fleet: Fleet) -> str:
    parts = [_head(fleet), _suspects(fleet), _nodes(fleet), _distributions(fleet), _peers(fleet), _curves(fleet)]
    parts += [_fingerprints(fleet), _reading()]
    title = escape(f"{fleet.verdict}: {coverage_text(fleet)}")
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
    lack = (fleet.coverage.nodes_expected or 0) - fleet.coverage.nodes_reported
    if lack > 0:
        tiles += f'<div class="tile"><b class="{INCOMPLETE}">{SYMBOLS[INCOMPLETE]} {lack}</b>not reported</div>'
    about = [coverage_text(fleet)]
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
    banner = '<div class="banner">A CPU rehearsal: no GPU was tested.</div>' if fleet.rehearsal else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in fleet.notes)
    return (
        f'<h1>GPU acceptance</h1>{banner}<div class="head {verdict}">'
        f'<div class="big">{SYMBOLS[verdict]} {verdict}</div></div>{reason}'
        f'<p class="dim">{escape(" · ".join(about))}</p><div class="tiles">{tiles}</div>{notes}'
    )


def _suspects(fleet: Fleet) -> str:
    """One row for each part: several findings about one GPU are one suspect."""
    parts: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in fleet.findings[:SHOWN_FINDINGS]:
        parts[finding.verdict, finding.node, finding.device].append(finding)
    if not parts:
        return ""
    rows = "".join(
        f'<tr>{_verdict(verdict)}<td class="n">{escape(node or "the fleet")}</td>'
        f"<td>{escape(device)}</td><td>{'<br>'.join(escape(_sentence(f)) for f in found)}</td></tr>"
        for (verdict, node, device), found in parts.items()
    )
    rest = len(fleet.findings) - SHOWN_FINDINGS
    more = f'<p class="dim">and {rest} more, all in the JSON form</p>' if rest > 0 else ""
    header = "".join(f"<th>{name}</th>" for name in ("Verdict", "Node", "Device", "Why, and who says so"))
    return f'<h2>Suspects and gaps</h2><div class="scroll"><table><tr>{header}</tr>{rows}</table></div>{more}'


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
    opened = " open" if len(fleet.nodes) <= OPEN_TABLE else ""
    return (
        f'<h2>Nodes</h2><div class="map">{squares}</div>'
        f"<details{opened}><summary>Every node, check by check</summary>{table}</details>"
    )


def _node_row(node: Node, checks: list[str]) -> str:
    cells = "".join(_verdict(node.checks[name], SHORT) if name in node.checks else "<td></td>" for name in checks)
    started = escape(node.started) + (f"<br>pod gone, last seen {escape(node.last_seen)}" if node.last_seen else "")
    name = f'<td class="n" title="{escape(node.pod)}">{escape(node.node)}</td>'
    return f'<tr>{name}{_verdict(node.verdict)}{cells}<td class="dim">{started}</td></tr>'


def _verdict(verdict: str, words: Mapping[str, str] | None = None) -> str:
    return f'<td class="v {verdict}">{SYMBOLS[verdict]} {(words or {}).get(verdict, verdict)}</td>'


def _distributions(fleet: Fleet) -> str:
    cards = "".join(_card(dataclasses.replace(d, points=_with_node_findings(d, fleet))) for d in fleet.distributions)
    return f'<h2>Every number, every device a point</h2><div class="wide">{cards}</div>' if cards else ""


def _with_node_findings(d: Distribution, fleet: Fleet) -> list[Point]:
    """The points; one that its node or the baseline found is a suspect, too. Nodes write "cuda:3: gemm_bf16 is …"."""
    found = [f for f in fleet.findings if f.check == d.check and f.verdict in (FAIL, WARN)]
    reasons = {node: [f for f in found if f.node == node] for node in {f.node for f in found}}

    def verdict(point: Point) -> str:
        about = f"{point.device or 'node'}: {d.name} "
        said = [
            f.verdict
            for f in reasons.get(point.node, ())
            if about in f.reason or (f.device == point.device and f.reason.startswith(f"{d.name} "))
        ]
        return worst([point.verdict, *said])

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
    arrow = {"higher": "more is better", "lower": "less is better"}.get(d.better, "")
    said = escape(" · ".join(fact for fact in [*facts, arrow] if fact))
    head = f'<h3>{escape(d.check)} · {escape(d.name)}</h3><span class="dim">{escape(d.unit)}</span>'
    return (
        f'<div class="card"><div class="row">{head}</div>{"" if one else plots.strip(d)}<p class="dim">{said}</p></div>'
    )


def _peers(fleet: Fleet) -> str:
    """Matrices of pairs ("cuda:0→cuda:1"): the median of all nodes, then of the nodes with findings."""
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
        suspects = [f.node for f in fleet.findings if f.check == d.check]
        shown = list(dict.fromkeys([*(node for node in suspects if node in matrices), *matrices]))
        shown = shown if len(matrices) == 1 else [node for node in shown if node in suspects]
        cards += [(node, matrices[node]) for node in shown[:MATRICES]]
        body = "".join(
            f'<div class="card"><h3>{escape(title)}</h3>{plots.heat(pairs, d.unit)}</div>' for title, pairs in cards
        )
        heading = f"{escape(d.name)} between devices, {escape(d.unit)}, from row to column"
        parts.append(f'<h2>{heading}</h2><div class="wide">{body}</div>')
    return "".join(parts)


def _curves(fleet: Fleet) -> str:
    groups = defaultdict(list)
    for c in fleet.curves:
        groups[c.check, c.name, c.unit].append(c)
    cards = ""
    for (_, name, unit), several in groups.items():
        said = f"{escape(unit)} over message size · median and range of {len(several)} nodes"
        head = f'<div class="row"><h3>{escape(name)}</h3><span class="dim">{said}</span></div>'
        cards += f'<div class="card">{head}{plots.curve(name, unit, several)}</div>'
    return f'<h2>Collectives over message size</h2><div class="wide">{cards}</div>' if cards else ""


def _fingerprints(fleet: Fleet) -> str:
    if not fleet.votes:
        return ""
    rows = "".join(
        f'<tr><td>{escape(v.name)}</td><td>{v.agree} of {v.voters}</td><td class="{_colour(v)}">{escape(_odd(v))}</td>'
        f"<td>{escape(v.group)}</td></tr>"
        for v in fleet.votes
    )
    header = "".join(f"<th>{name}</th>" for name in ("Fingerprint", "Agree", "Differ", "Compared among"))
    return f'<h2>Fingerprints, bit for bit</h2><div class="scroll"><table><tr>{header}</tr>{rows}</table></div>'


def _odd(vote: Vote) -> str:
    if vote.voters == 1:
        return "nobody to compare with"
    return ", ".join(vote.odd[:20]) + " …" * (len(vote.odd) > 20) or "nobody"


def _colour(vote: Vote) -> str:
    return SKIP if vote.voters == 1 else FAIL if vote.odd else PASS


def _reading() -> str:
    return """<h2>How to read this</h2>
<p>PASS: everything asked for was measured and is within its limits. WARN: near a limit, or a bit behind the fleet.
FAIL: a fault is proven. INCOMPLETE: something was not measured or reported, so nobody knows. SKIP: cannot apply.</p>
<p class="dim">In the plots the solid line is the median, the dashed ones are limits, and large points in colour are
suspects; hold the pointer over a point for its name. GB is 10<sup>9</sup> bytes, KiB is 2<sup>10</sup>.</p>"""
