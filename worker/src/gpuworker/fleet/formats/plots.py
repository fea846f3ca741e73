"""Plots of the page as inline SVG: made of numbers and escaped names, without scripts, fonts or a network.

Colours are classes of the page's style sheet, so plots follow its light and dark schemes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from html import escape

from gpuworker.accept.report import PASS
from gpuworker.fleet.fleet_report import Curve, Distribution, Point, natural_sort_key
from gpuworker.runtime.svg_plot import CHARACTER_WIDTH, horizontal_axis, line_plot, shorten, svg, ticks

WIDTH = 520  # about the width of a card, so that text keeps its size
LEFT, RIGHT = 12, 12
MOST_CIRCLES = 600  # with more points, healthy ones are one path: a page of thousands of GPUs must still open
MOST_LABELS = 5
LOW_SHARE = 0.95  # a curve that ends below this share of the median has a line of its own


def strip_plot(d: Distribution) -> str:
    """One point per device over the measured value. Points of nearly equal value are stacked."""
    values = [point.value for point in d.points]
    low, high = min(values), max(values)
    for line in (d.limit, d.warn_limit):  # a limit far away would squeeze the points
        if line is not None and low - 1.5 * (high - low) - 0.1 * abs(low) <= line <= high + 0.1 * abs(high):
            low, high = min(low, line), max(high, line)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, or nearly
        low, high = low - 0.02 * abs(low) - 1e-12, high + 0.02 * abs(high) + 1e-12
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    placed, tallest = _stack(d.points, x)
    size = 3.2 if len(d.points) <= 100 else 2.2
    step = min(2.1 * size, 78 / max(1, tallest - 1))
    top = 20 if any(point.verdict != PASS for point, _, _ in placed) else 8
    base = top + size + step * max(0, tallest - 1) + 6
    marks = [(x(value), f"{value:g}") for value in ticks(low, high) if low <= value <= high]
    parts = [horizontal_axis(marks, base + 6, LEFT, WIDTH - RIGHT)]
    parts.append(_line(x(d.median), top - 4, base + 6, "median", "median"))
    for value, name, style in ((d.limit, "limit", "limit"), (d.warn_limit, "warning limit", "warn")):
        if value is not None and low <= value <= high:
            parts.append(_line(x(value), top - 4, base + 6, name, style))
    healthy = [(px, base - level * step) for point, px, level in placed if point.verdict == PASS]
    if len(d.points) > MOST_CIRCLES:
        dots = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in healthy)
        parts.append(f'<path class="dots" stroke-width="{2 * size}" d="{dots}"/>')
    for point, px, level in placed:
        if point.verdict != PASS or len(d.points) <= MOST_CIRCLES:
            title = f"{point.node} {point.device}: {point.value:.4g} {d.unit}"
            radius = size if point.verdict == PASS else size + 1.5
            parts.append(
                f'<circle class="p {point.verdict}" cx="{px:.1f}" cy="{base - level * step:.1f}" r="{radius}">'
                f"<title>{escape(title)}</title></circle>"
            )
    parts += _names(placed, top, base, step)
    return svg(WIDTH, base + 26, f"{d.name} of {len(values)} devices", parts)


def _stack(points: Sequence[Point], x) -> tuple[list[tuple[Point, float, int]], int]:
    """(point, x, level above the axis): a column every 4 pixels. Outliers are placed first, at the bottom."""
    columns: dict[int, int] = defaultdict(int)
    placed = []
    for point in sorted(points, key=lambda point: point.verdict == PASS):
        column = round(x(point.value) / 4)
        placed.append((point, x(point.value), columns[column]))
        columns[column] += 1
    return placed, max(columns.values())


def _names(placed: list[tuple[Point, float, int]], top: float, base: float, step: float) -> list[str]:
    """Names of the first outliers, left to right, where there is room."""
    outliers = sorted((item for item in placed if item[0].verdict != PASS), key=lambda item: item[1])
    parts, free = [], 0.0
    for point, px, level in outliers[:MOST_LABELS]:
        name = shorten(f"{point.node} {point.device}".strip())
        width = CHARACTER_WIDTH * len(name)
        start = min(max(px - width / 2, LEFT), WIDTH - RIGHT - width)
        if start >= free:
            parts.append(f'<text class="name" x="{start:.1f}" y="{top - 8}">{escape(name)}</text>')
            parts.append(f'<path class="lead" d="M{px:.1f} {top - 5}V{base - level * step - 6:.1f}"/>')
            free = start + width + 10
    return parts


def curve_plot(name: str, unit: str, curves: Sequence[Curve]) -> str:
    """Value over message size on a logarithmic axis: median and range of all nodes, and nodes that end far below."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for size, value in curve.points:
            by_size[size].append(value)
    sizes = sorted(by_size)
    median = [(size, statistics.median(by_size[size])) for size in sizes]
    upper, lower = ([(size, extreme(by_size[size])) for size in sizes] for extreme in (max, min))
    reached = dict(median)
    low = [c for c in curves if c.points[-1][1] < LOW_SHARE * reached[c.points[-1][0]]]
    low.sort(key=lambda c: c.points[-1][1])
    shown = {f"median of {len(curves)}": median, **{c.node: c.points for c in low[:MOST_LABELS]}}
    return line_plot(
        shown, "message size", f"{name} in {unit}", log2_x=True, x_format=_bytes, band=upper + lower[::-1],
        size=(WIDTH, 210),
    )  # fmt: skip


def heat_map(pairs: dict[tuple[str, str], float], unit: str) -> str:
    """Value from the row's device to the column's device, as text and as a colour: darker is higher."""
    names = sorted({name for pair in pairs for name in pair}, key=natural_sort_key)
    cell, left, top = (46, 70, 22) if len(names) <= 8 else (30, 70, 22)
    high = max(pairs.values())
    low = min(*pairs.values(), 0.7 * high)  # small differences between healthy links must look small
    parts = []
    for row, source in enumerate(names):
        middle = row * cell + cell / 2
        row_label = f'text-anchor="end" x="{left - 6}" y="{top + middle + 4}"'
        column_label = f'text-anchor="middle" x="{left + middle}" y="{top - 7}"'
        parts.append(f'<text class="tick" {row_label}>{escape(source)}</text>')
        parts.append(f'<text class="tick" {column_label}>{escape(_short(source))}</text>')
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
            style = "on" if share > 0.5 else "off"
            parts.append(f'<text class="{style}" text-anchor="middle" {place}>{_three_digits(value)}</text>')
    side = len(names) * cell + 4
    return svg(left + side, top + side, f"from row to column in {unit}", parts)


def _line(x: float, top: float, bottom: float, name: str, style: str) -> str:
    return f'<path class="{style}" d="M{x:.1f} {top:.1f}V{bottom:.1f}"><title>{name}</title></path>'


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _short(name: str) -> str:
    return name.rpartition(":")[2] or name
