"""A line plot as SVG: small enough to need no library, and a browser shows it without a network."""

from __future__ import annotations

import html
import math

WIDTH, HEIGHT = 800, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 44
COLOURS = ("#1f5fa8", "#c2571a", "#3c7d3c")
POINTS = 600  # more than this cannot be told apart

Curve = list[tuple[float, float]]


def lines(curves: dict[str, Curve], x_name: str, y_name: str) -> str:
    """An <svg> element with one line for each curve that has points; those that are no number are left out."""
    shown = {name: [(x, y) for x, y in thinned(curve) if math.isfinite(y)] for name, curve in curves.items() if curve}
    xs = [x for curve in shown.values() for x, _ in curve]
    ys = [y for curve in shown.values() for _, y in curve]
    if not xs:
        return "<p>no points</p>"
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-9)
    y_low, y_high = y_ticks[0], max(y_ticks[-1], y_ticks[0] + 1e-9)

    def across(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#444">'
    ]
    for y in y_ticks:
        parts.append(f'<path d="M{LEFT} {down(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in x_ticks:
        if x_low <= x <= x_high:
            parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_name)}</text>'
    )
    parts.append(f'<text x="8" y="14">{html.escape(y_name)}</text>')
    for number, (name, curve) in enumerate(shown.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(curve) <= 40:
            parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>' for x, y in curve]
        parts.append(f'<text x="{WIDTH - RIGHT - 90 * (number + 1)}" y="14" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if low == high:
        high = low + (abs(low) or 1.0)
    span = high - low
    power = 10 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= wanted)
    first = math.floor(low / step)
    return [round(number * step, 12) for number in range(first, math.ceil(high / step) + 1)]


def thinned(curve: Curve) -> Curve:
    """At most POINTS points, each the mean of its neighbours."""
    size = math.ceil(len(curve) / POINTS)
    groups = (curve[first : first + size] for first in range(0, len(curve), size or 1))
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
