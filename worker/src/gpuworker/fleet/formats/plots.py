"""Plots as inline SVG, made of numbers and escaped names alone: no script, no fonts, nothing from a network.

Colours are classes of the page's style sheet, so that plots follow its light and dark schemes.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from html import escape

from gpuworker.accept.report import PASS
from gpuworker.fleet.fleet_report import Curve, Distribution, Point, natural

WIDTH = 520  # about that of a card, so that text keeps its size
LEFT, RIGHT = 12, 12
CIRCLES = 600  # beyond it, healthy points are one path: a page of thousands of GPUs must still open
LABELS = 5
LAGS = 0.95  # a curve that ends below this share of the median is one of a suspect


def strip(d: Distribution) -> str:
    """Every device a point over the measured value; points of nearly the same value stand above each other."""
    values = [point.value for point in d.points]
    low, high = min(values), max(values)
    for line in (d.limit, d.warn_limit):  # a limit close by is worth seeing; one far away would squeeze the points
        if line is not None and low - 1.5 * (high - low) - 0.1 * abs(low) <= line <= high + 0.1 * abs(high):
            low, high = min(low, line), max(high, line)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # (nearly) one value
        low, high = low - 0.02 * abs(low) - 1e-12, high + 0.02 * abs(high) + 1e-12
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    placed, tallest = _swarm(d.points, x)
    size = 3.2 if len(d.points) <= 100 else 2.2
    step = min(2.1 * size, 78 / max(1, tallest - 1))
    suspects = [point for point, _, _ in placed if point.verdict != PASS]
    top = 20 if suspects else 8
    base = top + size + step * max(0, tallest - 1) + 6
    parts = [_axis(low, high, x, base + 6), _line(x(d.median), top - 4, base + 6, "median", "median")]
    for value, name, style in ((d.limit, "limit", "limit"), (d.warn_limit, "warning limit", "warn")):
        if value is not None and low <= value <= high:
            parts.append(_line(x(value), top - 4, base + 6, name, style))
    healthy = [(px, base - level * step) for point, px, level in placed if point.verdict == PASS]
    if len(d.points) > CIRCLES:
        dots = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in healthy)
        parts.append(f'<path class="dots" stroke-width="{2 * size}" d="{dots}"/>')
    for point, px, level in placed:
        if point.verdict != PASS or len(d.points) <= CIRCLES:
            title = f"{point.node} {point.device}: {point.value:.4g} {d.unit}"
            radius = size if point.verdict == PASS else size + 1.5
            parts.append(
                f'<circle class="p {point.verdict}" cx="{px:.1f}" cy="{base - level * step:.1f}" r="{radius}">'
                f"<title>{escape(title)}</title></circle>"
            )
    parts += _names(placed, top, base, step)
    return _svg(base + 26, f"{d.name} of {len(values)} devices", parts)


def _swarm(points: Sequence[Point], x) -> tuple[list[tuple[Point, float, int]], int]:
    """(point, x, level above the axis): a column every 4 pixels. Suspects are placed first, at the bottom."""
    columns: dict[int, int] = defaultdict(int)
    placed = []
    for point in sorted(points, key=lambda point: point.verdict == PASS):
        column = round(x(point.value) / 4)
        placed.append((point, x(point.value), columns[column]))
        columns[column] += 1
    return placed, max(columns.values())


def _names(placed: list[tuple[Point, float, int]], top: float, base: float, step: float) -> list[str]:
    """Names of the first suspects, left to right, where there is room."""
    suspects = sorted((item for item in placed if item[0].verdict != PASS), key=lambda item: item[1])
    parts, free = [], 0.0
    for point, px, level in suspects[:LABELS]:
        name = f"{point.node} {point.device}".strip()
        name = name if len(name) <= 40 else name[:39] + "…"
        width = 6.2 * len(name)
        start = min(max(px - width / 2, LEFT), WIDTH - RIGHT - width)
        if start >= free:
            parts.append(f'<text class="name" x="{start:.1f}" y="{top - 8}">{escape(name)}</text>')
            parts.append(f'<path class="lead" d="M{px:.1f} {top - 5}V{base - level * step - 6:.1f}"/>')
            free = start + width + 10
    return parts


def curve(name: str, unit: str, curves: Sequence[Curve]) -> str:
    """Value over message size (logarithmic): the median of all nodes, their range, and those who lag behind."""
    sizes = sorted({size for c in curves for size, _ in c.points if size > 0})
    by_size = {size: [value for c in curves for s, value in c.points if s == size] for size in sizes}
    high = max(max(values) for values in by_size.values()) * 1.05 or 1.0
    height, left = 190, 58

    def x(size: float) -> float:
        span = math.log2(sizes[-1] / sizes[0]) or 1.0
        return left + math.log2(size / sizes[0]) / span * (WIDTH - left - 24)

    def y(value: float) -> float:
        return 10 + (1 - value / high) * (height - 40)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(size):.1f} {y(value):.1f}" for size, value in points)

    upper = [(size, max(by_size[size])) for size in sizes]
    lower = [(size, min(by_size[size])) for size in reversed(sizes)]
    parts = [f'<path class="band" d="{path(upper + lower)}Z"/>']
    for value in _ticks(0, high, 4):
        parts.append(f'<path class="grid" d="M{left} {y(value):.1f}H{WIDTH - 20}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{left - 6}" y="{y(value) + 4:.1f}">{value:g}</text>')
    for size in sizes[:: max(1, math.ceil(len(sizes) / 7))]:
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x(size):.1f}" y="{height - 8}">{_bytes(size)}</text>'
        )
    middle = [(size, statistics.median(by_size[size])) for size in sizes]
    parts.append(f'<path class="line" d="{path(middle)}"/>')
    for size, value in middle:
        title = f"{_bytes(size)}: median {value:.4g} {unit} of {len(by_size[size])} nodes"
        at = f'cx="{x(size):.1f}" cy="{y(value):.1f}" r="3"'
        parts.append(f'<circle class="p PASS" {at}><title>{escape(title)}</title></circle>')
    lagging = [c for c in curves if c.points[-1][1] < LAGS * statistics.median(by_size[c.points[-1][0]])]
    for c in sorted(lagging, key=lambda c: c.points[-1][1])[:LABELS]:
        parts.append(f'<path class="line suspect" d="{path(c.points)}"><title>{escape(c.node)}</title></path>')
        size, value = c.points[-1]
        parts.append(
            f'<text class="name" text-anchor="end" x="{x(size):.1f}" y="{y(value) - 5:.1f}">{escape(c.node)}</text>'
        )
    return _svg(height, f"{name} in {unit} over message size", parts)


def heat(pairs: dict[tuple[str, str], float], unit: str) -> str:
    """Value from the row's device to the column's device: the darker, the higher, as text in every cell, too."""
    names = sorted({name for pair in pairs for name in pair}, key=natural)
    cell, left, top = (46, 70, 22) if len(names) <= 8 else (30, 70, 22)
    high = max(pairs.values())
    low = min(*pairs.values(), 0.7 * high)  # healthy links differ a little: that must not look like much
    parts = []
    for row, source in enumerate(names):
        middle = row * cell + cell / 2
        beside = f'text-anchor="end" x="{left - 6}" y="{top + middle + 4}"'
        above = f'text-anchor="middle" x="{left + middle}" y="{top - 7}"'
        parts.append(f'<text class="tick" {beside}>{escape(source)}</text>')
        parts.append(f'<text class="tick" {above}>{escape(_short(source))}</text>')
        for column, target in enumerate(names):
            value = pairs.get((source, target))
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 1.0
            at = f'x="{left + column * cell}" y="{top + row * cell}" width="{cell - 2}" height="{cell - 2}"'
            title = escape(f"{source} → {target}: {value:.4g} {unit}")
            parts.append(
                f'<rect class="cell" {at} fill-opacity="{0.12 + 0.78 * share:.2f}"><title>{title}</title></rect>'
            )
            place = f'x="{left + column * cell + cell / 2 - 1}" y="{top + row * cell + cell / 2 + 3}"'
            parts.append(
                f'<text class="{"on" if share > 0.5 else "off"}" text-anchor="middle" {place}>{_three(value)}</text>'
            )
    return _svg(top + len(names) * cell + 4, f"from row to column in {unit}", parts, left + len(names) * cell + 4)


def _svg(height: float, label: str, parts: list[str], width: float = WIDTH) -> str:
    size = f'viewBox="0 0 {width:g} {height:.0f}" style="max-width:{width:g}px"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>{"".join(parts)}</svg>'


def _line(x: float, top: float, bottom: float, name: str, style: str) -> str:
    return f'<path class="{style}" d="M{x:.1f} {top:.1f}V{bottom:.1f}"><title>{name}</title></path>'


def _axis(low: float, high: float, x, y: float) -> str:
    parts = [f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>']
    for value in _ticks(low, high, 6):
        parts.append(f'<path class="grid" d="M{x(value):.1f} {y:.1f}v4"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{x(value):.1f}" y="{y + 16:.1f}">{value:g}</text>')
    return "".join(parts)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers within the range, about `count` of them."""
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [float(f"{index * step:.12g}") for index in range(first, math.floor(high / step) + 1)]


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _short(name: str) -> str:
    return name.rpartition(":")[2] or name
