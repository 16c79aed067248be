"""Draws predicted schedules: trainer steps an hour against staleness, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_sync.display.span_styles import INK

MODE_COLOURS = {
    "synchronous": "#3F5F7F",
    "one_step_off_policy": "#8E4EC6",
    "asynchronous": "#57A773",
    "multi_explorer": "#E0A526",
    "custom": "#D9383A",
}
_QUIET = "#71717A"
_LABELS = "labels: I interval, O offset or S maximum staleness, × explorers"


class SchedulePoint(NamedTuple):
    """A schedule in the picture.

    Attributes:
      mode: name of its mode, which gives the colour.
      label: short name among those of its mode.
      staleness: mean staleness, in trainer steps.
      speed: trainer steps an hour.
      best: whether no other schedule is faster with data as fresh.
      chosen: whether it is the chosen one.
    """

    mode: str
    label: str
    staleness: float
    speed: float
    best: bool = False
    chosen: bool = False


def draw_frontier(points: Sequence[SchedulePoint], title: str, speed: str) -> Figure:
    """Draws all schedules; the best ones are joined by a line and have their names.

    Args:
      speed: name of the axis of speeds.
    """
    figure = Figure(figsize=(9.0, 5.0), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for mode, colour in MODE_COLOURS.items():
        own = [point for point in points if point.mode == mode]
        look: dict[str, Any] = {"linestyle": "none", "marker": "o", "color": colour}
        shown = mode.replace("_", " ")
        for best in (False, True):
            some = [point for point in own if point.best == best]
            if some:
                axes.plot(
                    [point.staleness for point in some],
                    [point.speed for point in some],
                    **look,
                    markersize=7 if best else 4,
                    alpha=1.0 if best else 0.45,
                    label=shown if best or not any(point.best for point in own) else None,
                    zorder=3,
                )  # fmt: skip
    line = sorted((point.staleness, point.speed) for point in points if point.best)
    axes.plot(*zip(*line, strict=True), color=_QUIET, linewidth=1.0, zorder=2)
    for point in points:
        if point.chosen:
            axes.plot(
                [point.staleness], [point.speed], marker="o", markersize=14, linestyle="none",
                markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.5,
                label="chosen", zorder=4,
            )  # fmt: skip
        if point.best:
            axes.annotate(
                point.label, (point.staleness, point.speed), xytext=(7, -11),
                textcoords="offset points", fontsize=8, color=INK,
            )  # fmt: skip
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel(f"mean staleness, trainer steps\n{_LABELS}", color=_QUIET)
    axes.set_ylabel(speed, color=_QUIET)
    axes.set_ylim(0.0, 1.1 * max(point.speed for point in points))
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure
