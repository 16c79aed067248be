"""Draws curves as SVG on the server, so that a browser needs no script to show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 22
_BUCKETS = 160
_DIGITS, _MOST_DIGITS = 4, 9
_ROUNDING = 1e-6
"""Tolerance of rounding. Negative numbers closer to 0 count as 0: a share computed in float32 may
be −3e-8. Numbers whose relative difference is smaller count as equal."""


class Series(NamedTuple):
    """A curve.

    Attributes:
      name: name in the legend.
      points: x and y; points with None or a number that is not finite are left out.
      colour: the number of its colour.
      is_stepped: whether a value holds until the next one.
      is_faint: whether it is drawn faintly, behind a smoothed curve of the same numbers.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int = 0
    is_stepped: bool = False
    is_faint: bool = False


class Area(NamedTuple):
    """A band between two curves, in the colour of a series.

    Attributes:
      points: x, and the lower and the upper y.
      colour: the number of its colour.
    """

    points: Sequence[tuple[float, float, float]]
    colour: int = 0


class _Scale(NamedTuple):
    """Maps numbers between `low` and `high` to pixels; with `is_log` by their logarithms."""

    low: float
    high: float
    first: float
    last: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        share = (value - low) / (high - low)
        return round(self.first + share * (self.last - self.first), 1)


def chart(
    series: Sequence[Series],
    *,
    bound: float | None = None,
    x_unit: str = "step",
    areas: Sequence[Area] = (),
    is_log: bool = False,
) -> Markup:
    """Draws curves into one pair of axes.

    Args:
      areas: bands behind the curves.
      bound: a level to mark by a dashed line; None for none.
      x_unit: the name of the horizontal axis.
      is_log: whether the vertical axis is logarithmic. Values of 0 and less are then left out; if
        no value is positive, the axis is linear.

    Returns:
      An SVG element; a paragraph if there is no point to draw.
    """
    curves = [(one, _finite(one.points)) for one in series]
    is_log = is_log and any(y > 0 for _, points in curves for _, y in points)
    if is_log:
        curves = [(one, [(x, y) for x, y in points if y > 0]) for one, points in curves]
        areas = [one._replace(points=[p for p in one.points if p[1] > 0]) for one in areas]
        bound = bound if bound and bound > 0 else None
    points = [point for _, of_one in curves for point in of_one]
    if not points:
        return Markup('<p class="nothing">nothing yet</p>')
    drawn = [one._replace(points=of_one) for one, of_one in curves]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    levels = [y for _, y in points] + ([] if bound is None else [bound])
    levels += [y for area in areas for _, *ends in area.points for y in ends]
    ticks = (log_ticks if is_log else nice_ticks)(min(levels), max(levels))
    x = _Scale(x_low, x_high if x_high > x_low else x_low + 1, _LEFT, WIDTH - _RIGHT)
    y = _Scale(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP, is_log)
    parts = [_axes(x, y, ticks, x_unit)]
    parts += [_area(area, x, y) for area in areas if area.points]
    parts += [_curve(one, x, y) for one in drawn if one.points]
    if bound is not None:
        parts.append(
            f'<line class="bound" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(bound)}"'
            f' y2="{y(bound)}"/>'
        )
    scales = " ".join(f"{number:.10g}" for number in (*x[:4], *y[:4], is_log))
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' data-scales="{scales}" data-unit="{escape(x_unit)}">{"".join(parts)}</svg>'
    )


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Returns round numbers, evenly spaced, that enclose two numbers.

    Numbers that are negative only by rounding count as 0. If the two numbers are equal, except for
    rounding, the axis extends to 0.
    """
    if -_ROUNDING < low < 0:
        low, high = 0.0, high if high > _ROUNDING else 0.0
    if high - low <= _ROUNDING * max(abs(low), abs(high)):
        low, high = (min(low, 0.0), max(high, 0.0)) if low or high else (0.0, 1.0)
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Returns powers of ten, evenly spaced, that enclose two positive numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    step = -(-(last - first) // (most - 1))
    return [10.0**power for power in range(first, last + step, step)]


def smoothed(
    points: Sequence[tuple[float, float | None]], weight: float
) -> list[tuple[float, float]]:
    """Computes the bias-corrected exponential moving average of a curve.

    Args:
      weight: weight of the average so far, from 0 (no smoothing) to below 1.
    """
    total, mass, found = 0.0, 0.0, []
    for x, y in _finite(points):
        total, mass = weight * total + (1 - weight) * y, weight * mass + (1 - weight)
        found.append((x, total / mass))
    return found


def thinned(
    points: Sequence[tuple[float, float]], buckets: int = _BUCKETS
) -> list[tuple[float, float]]:
    """Keeps the least and the greatest value of each interval, so that no peak is lost."""
    if len(points) <= 2 * buckets:
        return list(points)
    kept: list[tuple[float, float]] = []
    for number in range(buckets):
        part = points[number * len(points) // buckets : (number + 1) * len(points) // buckets]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return [points[0], *kept[1:-1], points[-1]]


def _finite(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(x, float(y)) for x, y in points if y is not None and math.isfinite(y)]


def _axes(x: _Scale, y: _Scale, ticks: Sequence[float], x_unit: str) -> str:
    lines = []
    for tick, mark in zip(ticks, _marks(ticks), strict=True):
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>'
            f'<text class="tick" x="{_LEFT - 4}" y="{y(tick) + 3}" text-anchor="end">'
            f"{mark}</text>"
        )
    for value, anchor in ((x.low, "start"), (x.high, "end")):
        lines.append(
            f'<text class="tick" x="{x(value)}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
            f"{short(value)}</text>"
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    lines.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_unit)}</text>"
    )
    return "".join(lines)


def _marks(ticks: Sequence[float]) -> list[str]:
    """Formats the numbers of an axis with enough digits to tell them apart."""
    marks = [short(tick) for tick in ticks]
    for digits in range(_DIGITS + 1, _MOST_DIGITS + 1):
        if len(set(marks)) == len(marks):
            break
        marks = [short(tick, digits) for tick in ticks]
    return marks


def _area(area: Area, x: _Scale, y: _Scale) -> str:
    there = [f"{x(at)},{y(high)}" for at, _, high in area.points]
    back = [f"{x(at)},{y(low)}" for at, low, _ in reversed(area.points)]
    return f'<polygon class="area run{area.colour % 8}" points="{" ".join([*there, *back])}"/>'


def _curve(series: Series, x: _Scale, y: _Scale) -> str:
    points = [(a, b) for a, b in series.points if b is not None]
    if series.is_stepped:
        corners = [(after[0], before[1]) for before, after in itertools.pairwise(points)]
        points = [p for pair in itertools.zip_longest(points, corners) for p in pair if p]
    else:
        points = thinned(points)
    places = " ".join(f"{x(a)},{y(b)}" for a, b in points)
    name, colour = escape(series.name), series.colour % 8
    if series.is_faint:
        return f'<polyline class="run{colour} faint" points="{places}"/>'
    if len(points) == 1:
        at = f'cx="{x(points[0][0])}" cy="{y(points[0][1])}"'
        return f'<circle class="run{colour}" {at} r="3"><title>{name}</title></circle>'
    return (
        f'<polyline class="run{colour}" points="{places}" data-name="{name}">'
        f"<title>{name}</title></polyline>"
    )


def short(value: float, digits: int = _DIGITS) -> str:
    """Formats a number in few characters."""
    if abs(value) < _ROUNDING**2:
        return "0"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, _, exponent = f"{value:.{digits - 1}g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text
