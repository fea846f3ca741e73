"""The fleet report as HTML: the page of the fleet, of a node and of a check, and a certificate to print.

The collector serves them with links to each other (`served`), so that the first page stays small. As a file, the page
holds everything. Nothing is loaded from elsewhere; page.js only filters, sorts, copies and updates what is there.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import Fleet, Node, World, check_names, describe_coverage
from gpuworker.fleet.formats.measurements import plots_of
from gpuworker.fleet.formats.table import SHORT
from gpuworker.fleet.suspects import Suspect
from gpuworker.runtime import svg_plot

MOST_SUSPECTS = 200  # on the page; the others are on the pages of their nodes and in the downloads
MOST_REASONS = 3
SYMBOLS = {PASS: "✓", WARN: "!", FAIL: "✗", INCOMPLETE: "?", SKIP: "–"}
HERE = Path(__file__).parent
STYLE = svg_plot.STYLE + (HERE / "page.css").read_text(encoding="utf-8")
SCRIPT = (HERE / "page.js").read_text(encoding="utf-8")
HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# Pages contain names from reports. Whatever they are, no other script runs and nothing is loaded from elsewhere.
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{HASH}'; connect-src 'self'"
DOWNLOADS = (("report.json", "JSON"), ("suspects.csv", "CSV"), ("junit.xml", "JUnit"), ("certificate", "Certificate"))


def page(fleet: Fleet, served: bool = False) -> str:
    """The page of the fleet: verdict, suspects, nodes, measurements."""
    parts = [_head(fleet, served), _controls(), _suspects(fleet, fleet.suspects[:MOST_SUSPECTS], served)]
    rest = len(fleet.suspects) - MOST_SUSPECTS
    if rest > 0:
        parts.append(f'<p class="dim">{rest} more suspects are on the pages of their nodes and in the downloads.</p>')
    parts += [_nodes(fleet, served), _worlds(fleet), _measures(fleet, served)]
    if not served:
        named = dict.fromkeys(suspect.node for suspect in fleet.suspects[:MOST_SUSPECTS])
        nodes = {node.node: node for node in fleet.nodes}
        found = [nodes[name] for name in named if name in nodes]
        numbers = _numbers(fleet, {node.node for node in found})
        parts += [
            f'<section id="{_anchor(node.node)}"><h2>{escape(node.node)}</h2>{_about(node)}{numbers[node.node]}'
            "</section>"
            for node in found
        ]
    return document(f"{fleet.verdict}: {describe_coverage(fleet)}", "\n".join([*parts, LEGEND]), live=served)


def node_page(fleet: Fleet, name: str) -> str:
    """All that is known about one node; also of a node that did not report."""
    node = next((node for node in fleet.nodes if node.node == name), None)
    if node:
        big, details = _big(node.verdict), _about(node) + _numbers(fleet, {name})[name]
    else:
        big, details = "<p>No report of this node.</p>", ""
    found = [suspect for suspect in fleet.suspects if suspect.node == name]
    body = f"{BACK}<h1>{escape(name)}</h1>{big}{_suspects(fleet, found, True)}{details}"
    return document(name, body, live=True)


def check_page(fleet: Fleet, check: str) -> str:
    return document(check, f"{BACK}<h1>{escape(check)}</h1>{plots_of(fleet, check)}", live=False)


BACK = '<nav><a href="./">← Fleet</a></nav>'


def document(title: str, body: str, live: bool) -> str:
    """A whole HTML page. `live`: page.js asks for a new version every few seconds."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f'<body{" data-live" * live}><p id="status" class="dim" role="status"></p>\n<main>\n{body}\n</main>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _head(fleet: Fleet, served: bool) -> str:
    verdict, nodes = fleet.verdict, fleet.nodes
    counts = [(SYMBOLS[name], fleet.count(name), name) for name in (FAIL, INCOMPLETE, WARN, PASS, SKIP)]
    tiles = "".join(
        f'<li class="tile"><b class="{name}">{symbol} {count}</b>{name}</li>' for symbol, count, name in counts if count
    )
    missing = (fleet.coverage.nodes_expected or 0) - fleet.coverage.nodes_reported
    if missing > 0:
        tiles += f'<li class="tile"><b class="{INCOMPLETE}">{SYMBOLS[INCOMPLETE]} {missing}</b>not reported</li>'
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
    banner = '<p class="banner">CPU rehearsal: no GPU was tested.</p>' if fleet.rehearsal else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in fleet.notes)
    links = " · ".join(f'<a href="{path}">{name}</a>' for path, name in DOWNLOADS)
    downloads = f'<nav class="downloads" aria-label="Downloads">{links}</nav>' if served else ""
    return (
        f"<h1>GPU acceptance</h1>{banner}{_big(verdict)}"
        f'<p class="headline">{escape(fleet.headline)}</p><p class="dim">{escape(" · ".join(about))}</p>'
        f'<ul class="tiles" aria-label="Nodes by verdict">{tiles}</ul>{downloads}{notes}'
    )


def _big(verdict: str) -> str:
    return f'<p class="head {verdict}"><span class="big">{SYMBOLS[verdict]} {verdict}</span></p>'


def _controls() -> str:
    """Shown by page.js, which filters the rows of all tables of class `rows`."""
    options = "".join(f"<option>{verdict}</option>" for verdict in (FAIL, INCOMPLETE, WARN, PASS, SKIP))
    return (
        '<form id="filter" role="search" hidden><label>Search <input id="q" type="search" '
        'placeholder="node, GPU, serial, act …"></label> <label>Verdict <select id="v"><option value="">all</option>'
        f'{options}</select></label> <output id="shown" for="q v"></output></form>'
    )


def _header(*names: str) -> str:
    cells = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in names)
    return f"<thead><tr>{cells}</tr></thead>"


def _suspects(fleet: Fleet, suspects: Iterable[Suspect], served: bool) -> str:
    """One row per part."""
    known = {node.node for node in fleet.nodes}
    rows = "".join(_suspect_row(suspect, known, served) for suspect in suspects)
    if not rows:
        return ""
    header = _header("Verdict", "Do", "Node", "Part", "Finding")
    return (
        '<h2 id="suspects">Suspects</h2><div class="scroll"><table class="rows stack">'
        f"<caption>One row per part, the worst first</caption>{header}<tbody>{rows}</tbody></table></div>"
    )


def _suspect_row(suspect: Suspect, known: set[str], served: bool) -> str:
    numbers = (("GPU UUID", suspect.uuid), ("serial", suspect.serial), ("PCI", suspect.pci), ("pod", suspect.pod))
    identity = "".join(
        f'<br><span class="dim id">{name} {line}</span>'
        for name, text in numbers
        if text
        for line in escape(text).split(", ")
    )
    more = suspect.reasons[1:MOST_REASONS]
    rest = len(suspect.reasons) - 1 - len(more)
    reasons = "".join(f"<li>{escape(text)}</li>" for text in more)
    reasons += f"<li>and {rest} more</li>" if rest > 0 else ""
    node = _node_link(suspect.node, served) if served or suspect.node in known else escape(suspect.node)
    where, part = (node, suspect.device or "node") if suspect.node else ("fleet", "")
    anchor = _anchor(suspect.node, suspect.device or ("part" if suspect.node else suspect.advice))
    return (
        f'<tr id="{anchor}">{_verdict(suspect.verdict)}'
        f'<td class="do" data-label="Do">{escape(suspect.act)}</td><td data-label="Node">{where}</td>'
        f'<td data-label="Part">{escape(part)}{identity}</td>'
        f'<td class="why"><p>{escape(suspect.why)}</p>{f"<ul>{reasons}</ul>" * bool(reasons)}'
        f'<p class="advice">{escape(suspect.advice)}</p><details><summary>Text of a ticket</summary>'
        f'<pre>{escape(suspect.ticket)}</pre><button type="button" class="copy" hidden>Copy</button></details>'
        "</td></tr>"
    )


def _node_link(name: str, served: bool) -> str:
    href = f"node?name={quote(name, safe='')}" if served else f"#{_anchor(name)}"
    return f'<a href="{escape(href)}">{escape(name)}</a>'


def _anchor(*names: str) -> str:
    """An id without spaces, which is its own address."""
    return quote("-".join(("node", *names)), safe="")


def _nodes(fleet: Fleet, served: bool) -> str:
    """A square and a row for each node; nodes without a report have no checks."""
    missing = fleet.coverage.missing
    if not fleet.nodes and not missing:
        return ""
    squares = "".join(_square(node.node, node.verdict) for node in fleet.nodes)
    squares += "".join(_square(name, INCOMPLETE) for name in missing)
    header = _header("Verdict", "Node", *fleet.checks, "Started")
    rows = "".join(_node_row(node, fleet.checks, served) for node in fleet.nodes)
    width = len(fleet.checks) + 1
    rows += "".join(
        f'<tr>{_verdict(INCOMPLETE)}<th scope="row">{_node_link(name, True) if served else escape(name)}</th>'
        f'<td colspan="{width}">no report received</td></tr>'
        for name in missing
    )
    return (
        f'<h2 id="nodes">Nodes</h2><div class="map" aria-hidden="true">{squares}</div><div class="scroll">'
        f'<table class="rows"><caption>Checks of every node</caption>{header}<tbody>{rows}</tbody></table></div>'
    )


def _square(name: str, verdict: str) -> str:
    return f'<span class="{verdict}" title="{escape(f"{name}: {verdict}")}"><i>{SYMBOLS[verdict]}</i></span>'


def _node_row(node: Node, checks: list[str], served: bool) -> str:
    lost = f"<br>pod no longer exists, last seen {escape(node.last_seen)}" if node.last_seen else ""
    name = _node_link(node.node, True) if served else escape(node.node)
    return (
        f'<tr>{_verdict(node.verdict)}<th scope="row">{name}</th>{_check_cells(node, checks)}'
        f'<td class="n dim">{escape(node.started[:19])}{lost}</td></tr>'
    )


def _about(node: Node) -> str:
    """Facts of a node and identity of its GPUs."""
    facts = {"Pod": node.pod, "Run": node.run_id, "Level": node.level, "Started": node.started}
    facts |= {"Last seen": node.last_seen, "Injected": node.injected}
    about = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    rows = "".join(
        f'<tr><th scope="row">{escape(gpu.device)}</th><td>{escape(gpu.uuid)}</td><td>{escape(gpu.serial)}</td>'
        f"<td>{escape(gpu.pci)}</td></tr>"
        for gpu in node.gpus
    )
    header = _header("Device", "GPU UUID", "Serial", "PCI address")
    gpus = f'<h3>GPUs</h3><div class="scroll"><table class="rows">{header}<tbody>{rows}</tbody></table></div>'
    return f"<dl>{about}</dl>{gpus * bool(rows)}"


def _numbers(fleet: Fleet, names: set[str]) -> dict[str, str]:
    """Every number of these nodes beside the median of the fleet."""
    rows: dict[str, list[str]] = {name: [] for name in names}
    for d in fleet.distributions:
        limit = "" if d.limit is None else f"{d.limit:.4g}"
        for point in (point for point in d.points if point.node in names):
            cells = (d.check, d.name, point.device, f"{point.value:.4g}", f"{d.median:.4g}", limit, d.unit)
            text = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            row = f"<tr>{_verdict(point.verdict, SHORT)}{text}</tr>"
            rows[point.node].insert(0 if point.verdict != PASS else len(rows[point.node]), row)
    header = _header("Fleet", "Check", "Measure", "Device", "Value", "Median", "Limit", "Unit")
    start = f'<h3>Numbers</h3><div class="scroll"><table class="rows">{header}<tbody>'
    return {name: f"{start}{''.join(found)}</tbody></table></div>" for name, found in rows.items()}


def _worlds(fleet: Fleet) -> str:
    """One row per run of cross-node checks."""
    if not fleet.worlds:
        return ""
    checks = check_names(fleet.worlds)
    rows = "".join(
        f'<tr>{_verdict(world.verdict)}<th scope="row" title="{escape(", ".join(world.nodes))}">'
        f'{escape(world.name)}</th>{_check_cells(world, checks)}<td class="n dim">{escape(world.started[:19])}</td>'
        "</tr>"
        for world in fleet.worlds
    )
    header = _header("Verdict", "Ranks", *checks, "Started")
    return (
        f'<h2>Cross-node checks</h2><div class="scroll"><table class="rows">{header}<tbody>{rows}</tbody></table></div>'
    )


def _check_cells(result: Node | World, checks: list[str]) -> str:
    found = result.checks
    return "".join(_verdict(found[name], SHORT) if name in found else "<td></td>" for name in checks)


def _verdict(verdict: str, words: dict[str, str] | None = None) -> str:
    return f'<td class="v {verdict}">{SYMBOLS[verdict]} {(words or {}).get(verdict, verdict)}</td>'


def _measures(fleet: Fleet, served: bool) -> str:
    """The spread of every measure; the plots, or links to them."""
    rows = ""
    for d in fleet.distributions:
        values = [point.value for point in d.points]
        check = escape(d.check)
        link = f'<a href="check?name={quote(d.check, safe="")}">{check}</a>' if served else check
        found = sum(point.verdict != PASS for point in d.points)
        cells = [f"{value:.4g}" for value in (d.median, min(values), max(values))]
        cells += ["" if d.limit is None else f"{d.limit:.4g}", escape(d.unit), str(len(values)), str(found or "")]
        rows += f"<tr><td>{link}</td><td>{escape(d.name)}</td><td>{escape(d.model)}</td>"
        rows += "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    if not rows:
        return ""
    header = _header("Check", "Measure", "GPU", "Median", "Min", "Max", "Limit", "Unit", "Values", "Outliers")
    table = f'<div class="scroll"><table class="rows">{header}<tbody>{rows}</tbody></table></div>'
    plots = "" if served else f"<details open><summary>Plots</summary>{plots_of(fleet)}</details>"
    return f'<h2 id="measurements">Measurements</h2>{table}{plots}'


LEGEND = """<h2>How to read this page</h2>
<p>PASS: everything that was requested was measured and is within its limits. WARN: near a limit, or slightly worse than
the fleet. FAIL: a proven fault. INCOMPLETE: a measurement or a report is missing. SKIP: does not apply.</p>
<p>In brackets stands what found it. [node]: the checks of the node. [world]: checks across nodes. [fleet]: comparison
with the other devices. [fingerprint]: equal computations with different results. [coverage]: something was requested
and is missing. [baseline]: comparison with an earlier run.</p>"""
