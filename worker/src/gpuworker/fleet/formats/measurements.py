"""Plots of all measurements: distributions, links between devices, curves over message sizes, fingerprints."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from html import escape

from gpuworker.accept.report import FAIL, PASS, SKIP, WARN
from gpuworker.fleet.fleet_report import Distribution, FingerprintGroup, Fleet, Point, worst_verdict
from gpuworker.fleet.formats import plots

MOST_MATRICES = 8
CARD = '<div class="card" tabindex="0">'  # scrolls on a phone, so the keyboard must reach it


def plots_of(fleet: Fleet, check: str = "") -> str:
    """Everything that was measured, by one check or by all."""
    if check:
        fleet = dataclasses.replace(
            fleet,
            distributions=[d for d in fleet.distributions if d.check == check],
            curves=[c for c in fleet.curves if c.check == check],
            fingerprints=[g for g in fleet.fingerprints if g.check == check],
        )
    return "".join(section(fleet) for section in (_distributions, _pairs, _curves, _fingerprints)) + LEGEND


LEGEND = """<p class="dim">In the plots the solid line is the median, dashed lines are limits, and large coloured points
have findings. Hover over a point to see its name. GB is 10<sup>9</sup> bytes, KiB is 2<sup>10</sup> bytes.</p>"""


def _distributions(fleet: Fleet) -> str:
    cards = "".join(_card(dataclasses.replace(d, points=_with_node_findings(d, fleet))) for d in fleet.distributions)
    return f'<h2>Measurements, one point per device</h2><div class="wide">{cards}</div>' if cards else ""


def _with_node_findings(d: Distribution, fleet: Fleet) -> list[Point]:
    """The points with the verdicts of all findings about them. Node checks write "cuda:3: gemm_bf16 is …"."""
    found = [f for f in fleet.findings if f.check == d.check and f.verdict in (FAIL, WARN)]
    reasons = defaultdict(list)
    for finding in found:
        reasons[finding.node].append(finding)

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
    return f'{CARD}<div class="row">{head}</div>{plot}<p class="dim">{text}</p></div>'


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
        body = "".join(f"{CARD}<h3>{escape(title)}</h3>{plots.heat_map(pairs, d.unit)}</div>" for title, pairs in cards)
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
        cards += f"{CARD}{head}{plots.curve_plot(name, unit, several)}</div>"
    return f'<h2>Bandwidth by message size</h2><div class="wide">{cards}</div>' if cards else ""


def _fingerprints(fleet: Fleet) -> str:
    if not fleet.fingerprints:
        return ""
    rows = "".join(
        f'<tr><td>{escape(g.name)}</td><td>{g.agree} of {g.devices}</td><td class="{_colour(g)}">'
        f"{escape(_mismatched(g))}</td><td>{escape(g.group)}</td></tr>"
        for g in fleet.fingerprints
    )
    header = "".join(
        f'<th scope="col">{name}</th>' for name in ("Fingerprint", "Equal", "Different", "Group of devices")
    )
    return f'<h2>Fingerprints</h2><div class="scroll"><table><tr>{header}</tr>{rows}</table></div>'


def _mismatched(group: FingerprintGroup) -> str:
    if group.devices == 1:
        return "not compared: one device"
    return ", ".join(group.mismatched[:20]) + " …" * (len(group.mismatched) > 20) or "none"


def _colour(group: FingerprintGroup) -> str:
    return SKIP if group.devices == 1 else FAIL if group.mismatched else PASS
