"""Line plots and axes as SVG text: small enough to need no library, and a browser shows them without a network.

Colours are CSS classes. A page includes STYLE once; it follows the page's text colour, so light and dark both work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 58, 20, 24, 42
CHARACTER_WIDTH = 6.4  # pixels of one character at 11 px, about
MOST_POINTS = 600  # per line
MOST_MARKERS = 40  # a line of more points has no marker per point
COLOURS = ("#3b7fc4", "#d0602e", "#4a9a4e", "#9a62c7", "#b58a1b", "#c7527f")

Curve = Sequence[tuple[float, float]]

STYLE = """svg{width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:currentColor}
svg .tick{fill-opacity:.65}.grid{stroke:currentColor;stroke-opacity:.18;fill:none}.line{stroke-width:2;fill:none}
.band{fill-opacity:.18}.marker{stroke:none}
""" + "".join(f".line.c{i}{{stroke:{c}}}.c{i}:not(.line){{fill:{c}}}" for i, c in enumerate(COLOURS))  # fmt: skip


def line_plot(
    curves: dict[str, Curve],
    x_label: str,
    y_label: str,
    *,
    log2_x: bool = False,
    x_format: Callable[[float], str] = "{:g}".format,
    band: Curve = (),
    size: tuple[int, int] = (800, 360),
) -> str:
    """An <svg> with one line and one legend entry per curve that has points; points without a finite y are left out.

    `band` is the outline of an area in the first line's colour. `log2_x` puts the ticks at points of the curves.
    """
    shown = {name: [(x, y) for x, y in subsample(curve) if math.isfinite(y)] for name, curve in curves.items() if curve}
    xs = sorted({x for curve in shown.values() for x, _ in curve})
    if not xs:
        return "<p>no points</p>"
    y_ticks = ticks(*_range([y for curve in [*shown.values(), band] for _, y in curve]), size[1] // 50)
    width, height = size
    scale = math.log2 if log2_x else float
    x_low, x_span = scale(xs[0]), scale(xs[-1]) - scale(xs[0]) or 1.0
    y_low, y_span = y_ticks[0], y_ticks[-1] - y_ticks[0]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = (scale(point[0]) - x_low) / x_span, (point[1] - y_low) / y_span
        return LEFT + x * (width - LEFT - RIGHT), height - BOTTOM - y * (height - TOP - BOTTOM)

    def path(curve: Curve) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(place, curve))

    parts = []
    for y in y_ticks:
        level = place((xs[0], y))[1]
        parts.append(f'<path class="grid" d="M{LEFT} {level:.1f}H{width - RIGHT}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{level + 4:.1f}">{y:g}</text>')
    x_ticks = xs[:: math.ceil(len(xs) / 7)] if log2_x else [x for x in ticks(xs[0], xs[-1]) if xs[0] <= x <= xs[-1]]
    marks = [(place((x, y_low))[0], x_format(x)) for x in x_ticks]
    parts.append(horizontal_axis(marks, height - BOTTOM, LEFT, width - RIGHT))
    parts.append(f'<text class="tick" text-anchor="middle" x="{width / 2:g}" y="{height - 6}">{escape(x_label)}</text>')
    parts.append(f'<text class="tick" x="8" y="13">{escape(y_label)}</text>')
    if band:
        parts.append(f'<path class="band c0" d="{path(band)}Z"/>')
    legend_end = width - RIGHT
    for number, (name, curve) in enumerate(shown.items()):
        colour = f"c{number % len(COLOURS)}"
        if curve:
            parts.append(f'<path class="line {colour}" d="{path(curve)}"><title>{escape(name)}</title></path>')
        for x, y in curve if len(curve) <= MOST_MARKERS else ():
            title = escape(f"{name}: {x_format(x)}, {y:.4g}")
            cx, cy = place((x, y))
            circle = f'<circle class="marker {colour}" cx="{cx:.1f}" cy="{cy:.1f}" r="3">'
            parts.append(f"{circle}<title>{title}</title></circle>")
        label = shorten(name)
        parts.append(f'<text class="{colour}" text-anchor="end" x="{legend_end:.0f}" y="13">{escape(label)}</text>')
        legend_end -= CHARACTER_WIDTH * len(label) + 14
    return svg(width, height, f"{y_label} over {x_label}", parts)


def horizontal_axis(marks: Sequence[tuple[float, str]], y: float, left: float, right: float) -> str:
    """An axis at height `y` with a tick and a label at each (x in pixels, label)."""
    parts = [f'<path class="grid" d="M{left} {y:.1f}H{right}"/>']
    for x, label in marks:
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}v4"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{y + 16:.1f}">{escape(label)}</text>')
    return "".join(parts)


def svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """An <svg> element that shrinks with its page and is never wider than `width` pixels."""
    size = f'viewBox="0 0 {width:g} {height:.0f}" style="max-width:{width:g}px"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>{"".join(parts)}</svg>'


def shorten(name: str, most: int = 40) -> str:
    """The name, cut to `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if low == high:
        high = low + (abs(low) or 1.0)
    span = high - low
    power = 10 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= wanted)
    first = math.floor(low / step)
    return [float(f"{number * step:.12g}") for number in range(first, math.ceil(high / step) + 1)]


def subsample(curve: Curve) -> list[tuple[float, float]]:
    """At most MOST_POINTS points, each the mean of its neighbours."""
    size = math.ceil(len(curve) / MOST_POINTS)
    groups = (curve[first : first + size] for first in range(0, len(curve), size or 1))
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _range(values: list[float]) -> tuple[float, float]:
    """Smallest and largest value, far enough apart for ticks of 12 digits."""
    low, high = min(values), max(values)
    return low, max(high, low + 1e-9 * abs(low) + 1e-12)
