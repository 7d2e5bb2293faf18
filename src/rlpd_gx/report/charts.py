"""Curves as inline SVG: no script, no library, colours from the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

from rlpd_gx.report.records import Points

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 26, 12, 42  # the last label is centred on the right edge
_MOST_POINTS = 400
COLOURS = 8  # in the style sheet


@dataclass(frozen=True)
class Series:
    """One thing drawn: a line, or steps (a survival curve). A single point is drawn as a dot."""

    name: str
    points: Points
    kind: Literal["line", "steps"] = "line"
    colour: int = 1
    band: tuple[list[float], list[float]] | None = None
    """Lower and upper edge of a band around a line."""


@dataclass(frozen=True)
class Bars:
    """Groups of bars side by side: `values` [bar][group] with intervals or the points of each seed; None is no bar."""

    groups: Sequence[str]
    names: Sequence[str]
    values: Sequence[Sequence[float | None]]
    intervals: Sequence[Sequence[tuple[float, float] | None]]


def chart(
    series: Sequence[Series],
    last: float,
    *,
    width: int = 720,
    height: int = 260,
    percent: bool = False,
    x_label: str = "environment steps",
) -> str:
    """An SVG with axes, or nothing where no series has a point. The x axis runs from 0 to `last`."""
    shown = [s for s in series if s.points[0]]
    heights = [value for s in shown for value in s.points[1]]
    heights += [value for s in shown if s.band is not None for edge in s.band for value in edge]
    if not heights:
        return ""
    last = last if last > 0 else 1.0
    x_ticks = ticks(0.0, last, 6 if width > 500 else 4)
    low, high = (0.0, max(0.01, *heights)) if percent else (min(heights), max(heights))
    y_ticks = ticks(low, high, 5 if height > 200 else 4)
    x = Scale(0.0, last, _LEFT, width - _RIGHT)
    y = Scale(y_ticks[0], y_ticks[-1], height - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(_summary(shown), quote=True)}">'
    ]
    parts += _grid(y_ticks, y, width, percent)
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{height - _BOTTOM}" y2="{height - _BOTTOM}"/>'
    )
    for tick in x_ticks:
        if tick <= last:
            parts.append(
                f'<text class="tick middle" x="{x(tick):.1f}" y="{height - _BOTTOM + 17}">'
                f"{axis_number(tick, x_ticks)}</text>"
            )
    parts.append(
        f'<text class="label middle" x="{(_LEFT + width - _RIGHT) / 2:.0f}" y="{height - 8}">{escape(x_label)}</text>'
    )
    parts += [_drawn(s, x, y, percent) for s in shown]
    return "\n".join([*parts, "</svg>"])


def legend(series: Sequence[Series]) -> str:
    """Names beside their colours, for charts of several series."""
    shown = [s for s in series if s.points[0]]
    if len(shown) < 2:
        return ""
    keys = (
        f'<span><svg class="key line c{s.colour}" viewBox="0 0 18 12" aria-hidden="true">'
        f'<line x1="0" x2="18" y1="6" y2="6"/></svg>{escape(s.name)}</span>'
        for s in shown
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def bars(drawn: Bars) -> str:
    """An SVG of grouped bars with whiskers, or nothing where there is no bar."""
    width, height = 720, 280
    heights = [v for row in drawn.values for v in row if v is not None]
    heights += [edge for row in drawn.intervals for pair in row if pair is not None for edge in pair]
    if not heights:
        return ""
    y_ticks = ticks(min(0.0, *heights), max(0.0, *heights), 5)
    y = Scale(y_ticks[0], y_ticks[-1], height - _BOTTOM, _TOP)
    room = (width - _LEFT - _RIGHT) / len(drawn.groups)
    each = 0.8 * room / len(drawn.names)
    label = f"{', '.join(drawn.names)} in {', '.join(drawn.groups)}"
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label, quote=True)}">']
    parts += _grid(y_ticks, y, width)
    for g, group in enumerate(drawn.groups):
        left = _LEFT + room * (g + 0.1)
        parts.append(
            f'<text class="tick middle" x="{left + 0.4 * room:.1f}" y="{height - _BOTTOM + 17}">{escape(group)}</text>'
        )
        for b, name in enumerate(drawn.names):
            value, interval = drawn.values[b][g], drawn.intervals[b][g]
            if value is None:
                continue
            x, top, foot = left + b * each, min(y(value), y(0)), abs(y(value) - y(0))
            parts.append(
                f'<rect class="bar c{b % COLOURS + 1}" x="{x:.1f}" y="{top:.1f}" width="{0.9 * each:.1f}" '
                f'height="{foot:.1f}"><title>{escape(name)}, {escape(group)}: {number(value)}</title></rect>'
            )
            if interval is not None:
                middle = x + 0.45 * each
                parts.append(
                    f'<line class="axis" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(interval[0]):.1f}" '
                    f'y2="{y(interval[1]):.1f}"/>'
                )
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>')
    return "\n".join([*parts, "</svg>"])


def bar_legend(drawn: Bars) -> str:
    """Names beside their colours."""
    keys = (
        f'<span><svg class="key" viewBox="0 0 18 12" aria-hidden="true">'
        f'<rect class="bar c{i % COLOURS + 1}" x="3" y="1" width="12" height="10"/></svg>{escape(name)}</span>'
        for i, name in enumerate(drawn.names)
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def binned(points: Points) -> Points:
    """At most `_MOST_POINTS` points, each the mean of equally many neighbours."""
    steps, values = points
    if len(steps) <= _MOST_POINTS:
        return points
    size = -(-len(steps) // _MOST_POINTS)
    groups = [slice(start, start + size) for start in range(0, len(steps), size)]
    return [_mean(steps[g]) for g in groups], [_mean(values[g]) for g in groups]


def running_mean(points: Points, window: int) -> Points:
    """The mean of each value and those before it in the window."""
    steps, values = points
    return steps, [_mean(values[max(0, place + 1 - window) : place + 1]) for place in range(len(values))]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from just below `low` to just above `high`."""
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, 1e-200):
        room = largest / 10 if largest > 1e-190 else 1.0
        low, high = low - room, high + room
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * size >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def axis_number(value: float, among: Sequence[float], percent: bool = False) -> str:
    """A tick as short as its neighbours allow: 20k, 0.25, 1.5e-05, 3%."""
    step = among[1] - among[0]
    if percent:
        return f"{100 * value:.{_decimals(100 * step)}f}%"
    size = max(abs(among[0]), abs(among[-1]))
    if size >= 1e9 or size < 1e-4:
        return f"{value:.6g}"
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            unit_size = {"M": 1e6, "k": 1e3}[unit]
            return f"{value / unit_size:.{_decimals(step / unit_size)}f}{unit}" if value else "0"
    return f"{value:,.{_decimals(step)}f}"


def _decimals(step: float) -> int:
    """As many as neighbours need to differ."""
    return next((n for n in range(8) if abs(round(step, n) - step) < 1e-9 * step), 8)


def _grid(marks: Sequence[float], y: "Scale", width: int, percent: bool = False) -> list[str]:
    """A line and a number for each tick of the y axis."""
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick end" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}">{axis_number(tick, marks, percent)}</text>'
        for tick in marks
    ]


def _drawn(series: Series, x: "Scale", y: "Scale", percent: bool) -> str:
    steps, values = series.points
    spots = [(x(step), y(value)) for step, value in zip(steps, values, strict=True)]
    if len(spots) > 1:
        if series.kind == "steps":  # a value holds until the next one
            corners = [(right, py) for (_, py), (right, _) in pairwise(spots)]
            spots = [spot for pair in zip(spots, [*corners, spots[-1]], strict=True) for spot in pair]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in spots)
        return (
            _band(series, x, y) + f'<polyline class="line {series.kind} c{series.colour}" points="{path}"/>'
        )
    ((px, py),) = spots
    value = f"{100 * values[0]:.2f}%" if percent else number(values[0])
    return (
        f'<g class="dots c{series.colour}"><circle cx="{px:.1f}" cy="{py:.1f}" r="4">'
        f"<title>step {number(steps[0])}: {value}</title></circle></g>"
    )


def _band(series: Series, x: "Scale", y: "Scale") -> str:
    if series.band is None:
        return ""
    low, high = series.band
    there = [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(series.points[0], high, strict=True)]
    back = [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(series.points[0], low, strict=True)]
    return f'<polygon class="band c{series.colour}" points="{" ".join([*there, *back[::-1]])}"/>'


def number(value: float) -> str:
    """A number for people: whole ones with thousands separators, others with four significant digits."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e12):
        return f"{int(value):,}"
    if abs(value) >= 1_000:
        return f"{value:,.1f}"
    return f"{value:.4g}"


def _summary(shown: Sequence[Series]) -> str:
    parts = [
        f"{s.name}: {len(s.points[0])} points from {number(min(s.points[1]))} to {number(max(s.points[1]))}"
        for s in shown
    ]
    return "; ".join(parts)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


class Scale:
    """A linear map from numbers to positions in the picture."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.first = low, first
        self.slope = (last - first) / (high - low)

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) * self.slope
