"""Picture of a timeline: lanes, blocks, the buffer's fill level, arrows for groups and weights.

It is the only one: files, reports, notebooks and the page in the browser show it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from rl_sync.display.painter import BLOCK, JOINT_KINDS, WEIGHTS_LINE, Painter
from rl_sync.display.span_styles import SPAN_STYLES, PictureStyle
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import clipped
from rl_sync.role_names import TRAINER, is_explorer, role_order, split

_BELOW_INCHES, _TITLE_INCHES, _ROW_INCHES = 0.98, 0.42, 0.2
_LEGEND_INCHES = 1.25  # Width of a legend's entry.


def draw(
    spans: Iterable[Span],
    window: tuple[float, float],
    title: str = "",
    *,
    roles: Sequence[str] | None = None,
    style: PictureStyle = PictureStyle(),  # noqa: B008
) -> Figure:
    """Draws the part of a run that lies in a window.

    Args:
      spans: the spans of the whole run; the buffer's level at the window's start depends on all.
      window: its start and end, in Unix seconds.
      title: the title of the figure; empty for none.
      roles: the roles that have lanes; None for explorers and the trainer, if the window has them.

    Raises:
      ValueError: the window holds no span, and no roles are given.
    """
    spans = list(spans)
    origin_secs = min((span.start_secs for span in spans), default=0.0)
    start, end = window
    visible = clipped(spans, start, end) if end > start else []
    if roles is None:
        roles = sorted({span.role for span in visible if _has_lane(span.role)}, key=role_order)
        if not roles:
            last_secs = max((span.end_secs for span in spans), default=0.0) - origin_secs
            raise ValueError(
                f"Nothing happened between {start - origin_secs:.1f} s and"
                f" {end - origin_secs:.1f} s; the run's spans lie between 0.0 s and"
                f" {last_secs:.1f} s."
            )
    lanes, handles = _lanes(roles), _legend({span.kind for span in visible}, style)
    columns = min(len(handles), int(style.width_inches / _LEGEND_INCHES))
    rows = -(-len(handles) // columns)
    below = _BELOW_INCHES + _ROW_INCHES * (rows - 1)
    above = _TITLE_INCHES if title else 0.06
    high = style.lane_inches * len(lanes)
    height, width = below + high + above, style.width_inches
    figure = Figure(figsize=(width, height), facecolor=style.paper)
    FigureCanvasAgg(figure)
    left = style.names_inches / width
    axes = figure.add_axes((left, below / height, style.lanes_inches / width, high / height))
    _set_up(axes, lanes, (start - origin_secs, end - origin_secs), style)
    painter = Painter(axes, lanes, origin_secs, style)
    painter.buffer_level(spans, start, end)
    painter.groups(spans, start, end)
    painter.weights(spans, start, end)
    for role in roles:
        painter.lane([span for span in visible if span.role == role])
    figure.text(
        left, 1 - 0.14 / height, title, fontsize=13, fontweight="bold", color=style.ink, va="top"
    )
    figure.legend(
        handles=handles, loc="lower left", ncols=columns,
        bbox_to_anchor=(left - 0.005 if rows == 1 else 0.0, 0.0),
        fontsize=8.5, frameon=False, handlelength=1.5, columnspacing=1.4, labelcolor=style.ink,
    )  # fmt: skip
    return figure


def encoded(figure: Figure, kind: str, dpi: int = 160) -> bytes:
    """Encodes a figure as `png` or `svg`; the same figure gives the same bytes."""
    file = io.BytesIO()
    with mpl.rc_context({"hatch.linewidth": 0.5, "svg.hashsalt": "rl_sync"}):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()


def _has_lane(role: str) -> bool:
    return is_explorer(role) or role == TRAINER


def _lanes(roles: Sequence[str]) -> dict[str, float]:
    """Returns the height of each lane's middle: explorers on top, the buffer, the trainer."""
    names = [role for role in roles if is_explorer(role)] + ["buffer"]
    names += [role for role in roles if not is_explorer(role)]
    return {name: float(len(names) - 1 - rank) for rank, name in enumerate(names)}


def _lane_name(role: str, lanes: Iterable[str]) -> str:
    if is_explorer(role) and sum(is_explorer(lane) for lane in lanes) == 1:
        return "Explorer"
    kind, number = split(role)
    return f"{kind.capitalize()} {number or ''}".strip()


def _set_up(
    axes: Axes, lanes: dict[str, float], window: tuple[float, float], style: PictureStyle
) -> None:
    """Draws the axis, lane names, and a light background of each lane."""
    axes.set_facecolor(style.paper)
    axes.set_xlim(*window)
    axes.set_ylim(-0.5, len(lanes) - 0.5)
    axes.set_yticks(
        list(lanes.values()), [_lane_name(role, lanes) for role in lanes],
        fontsize=style.names_points, fontweight="bold", color=style.ink,
    )  # fmt: skip
    axes.tick_params(axis="y", length=0, pad=8)
    axes.tick_params(axis="x", labelsize=9, color=style.quiet, labelcolor=style.quiet)
    axes.locator_params(axis="x", nbins=max(2, min(9, int(1.2 * style.lanes_inches))))
    axes.set_xlabel("seconds since the start of the run", fontsize=9, color=style.quiet)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.line)
    for y in lanes.values():
        bed = Rectangle((window[0], y - BLOCK / 2), window[1] - window[0], BLOCK)
        bed.set(facecolor=style.bed, edgecolor="none", zorder=0)
        axes.add_patch(bed)


def _legend(shown: set[SpanKind], style: PictureStyle) -> list[Patch | Line2D]:
    """Returns the entries of a legend of the kinds that the picture shows."""

    def entries() -> Iterator[Patch | Line2D]:
        for kind, look in SPAN_STYLES.items():
            if kind in shown:
                waiting = kind is SpanKind.WAIT
                patch = Patch(
                    facecolor=style.wait if waiting else look.colour,
                    label=look.legend or look.words,
                )
                patch.set(edgecolor="#A1A1AA" if waiting else look.colour, linewidth=0.5)
                patch.set_hatch("////" if waiting else "")
                yield patch
        yield Patch(facecolor=style.level, edgecolor=style.groups, label="groups in the buffer")
        yield Line2D(
            [], [], color=style.groups, marker="v", markersize=5, label="groups enter / leave"
        )
        for kind in sorted(shown & (SYNC_KINDS - JOINT_KINDS)):
            colour = SPAN_STYLES[kind].colour
            yield Line2D([], [], color=colour, label="weights travel", **WEIGHTS_LINE)

    return [*entries()]
