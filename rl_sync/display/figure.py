"""Figure of a timeline: lanes, blocks, the buffer's fill level, arrows for groups and weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.patheffects import withStroke

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.records import buffer_level as buffer
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind, sync_kind
from rl_sync.records.summary import clipped, of_kind, overlap_secs, uncovered
from rl_sync.role_names import TRAINER, is_explorer, role_order, split
from rl_sync.transfer import TRANSFERS

_INK, _QUIET, _GROUPS, _LEVEL = "#27272A", "#71717A", "#3F5F7F", "#C9D9E8"
_JOINT_KINDS = frozenset(sync_kind(name) for name, one in TRANSFERS.items() if one.is_joint)
_QUIET_KINDS = frozenset(
    {SpanKind.SCORE, SpanKind.INSERT, SpanKind.SNAPSHOT, SpanKind.COMPILE, SpanKind.EVALUATION}
)

_WIDTH_INCHES, _LANE_INCHES, _FRAME_INCHES = 14.0, 1.0, 1.4
_BLOCK = 0.68  # A block's height, where lanes are 1 apart.
_LEAST_SYNC = 0.0045  # Syncs are drawn at least this wide, as a share of the window,
_MOST_SYNCS = 0.1  # unless that would give all syncs of a lane more than this share.
_LEAST_DRAWN = 0.0008
_WEIGHTS_LINE: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (3, 2)), "alpha": 0.8}
_MOST_ARROWS = 120  # More arrows than that hide everything.


def draw(spans: Iterable[Span], window: tuple[float, float], title: str) -> Figure:
    """Draws the part of a run that lies in a window.

    Args:
      spans: the spans of the whole run; the buffer's level at the window's start depends on all.
      window: its start and end, in Unix seconds.
      title: the title of the figure.

    Raises:
      ValueError: the window holds no span.
    """
    spans = list(spans)
    origin_secs = min((span.start_secs for span in spans), default=0.0)
    start, end = window
    visible = clipped(spans, start, end) if end > start else []
    roles = sorted({span.role for span in visible if _has_lane(span.role)}, key=role_order)
    if not roles:
        last_secs = max((span.end_secs for span in spans), default=0.0) - origin_secs
        raise ValueError(
            f"Nothing happened between {start - origin_secs:.1f} s and {end - origin_secs:.1f} s;"
            f" the run's spans lie between 0.0 s and {last_secs:.1f} s."
        )
    lanes = _lanes(roles)
    height = _FRAME_INCHES + _LANE_INCHES * len(lanes)
    figure = Figure(figsize=(_WIDTH_INCHES, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.98 / height, 0.895, _LANE_INCHES * len(lanes) / height))
    _set_up(axes, lanes, (start - origin_secs, end - origin_secs))
    most = max(len(of_kind(visible, *SYNC_KINDS, role=role)) for role in roles)
    least_sync_secs = (end - start) * min(_LEAST_SYNC, _MOST_SYNCS / max(most, 1))
    painter = _Painter(axes, lanes, origin_secs, least_sync_secs)
    painter.buffer_level(spans, start, end)
    painter.groups(spans, start, end)
    painter.weights(spans, start, end)
    for role in roles:
        painter.lane([span for span in visible if span.role == role])
    _annotate(figure, axes, visible, title, height)
    return figure


def _has_lane(role: str) -> bool:
    return is_explorer(role) or role == TRAINER


def _lanes(roles: list[str]) -> dict[str, float]:
    """Returns the height of each lane's middle: explorers on top, the buffer, the trainer."""
    names = [role for role in roles if is_explorer(role)] + ["buffer"]
    names += [role for role in roles if not is_explorer(role)]
    return {name: float(len(names) - 1 - rank) for rank, name in enumerate(names)}


def _lane_name(role: str, lanes: Iterable[str]) -> str:
    if is_explorer(role) and sum(is_explorer(lane) for lane in lanes) == 1:
        return "Explorer"
    kind, number = split(role)
    return f"{kind.capitalize()} {number or ''}".strip()


def _set_up(axes: Axes, lanes: dict[str, float], window: tuple[float, float]) -> None:
    """Draws the axis, lane names, and a light background of each lane."""
    axes.set_xlim(*window)
    axes.set_ylim(-0.5, len(lanes) - 0.5)
    axes.set_yticks(
        list(lanes.values()), [_lane_name(role, lanes) for role in lanes],
        fontsize=11, fontweight="bold", color=_INK,
    )  # fmt: skip
    axes.tick_params(axis="y", length=0, pad=8)
    axes.tick_params(axis="x", labelsize=9, color=_QUIET, labelcolor=_QUIET)
    axes.set_xlabel("seconds since the start of the run", fontsize=9, color=_QUIET)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#D4D4D8")
    for y in lanes.values():
        bed = Rectangle((window[0], y - _BLOCK / 2), window[1] - window[0], _BLOCK)
        bed.set(facecolor="#FAFAFA", edgecolor="none", zorder=0)
        axes.add_patch(bed)


class _Painter:
    """Draws into one pair of axes, and converts times from Unix seconds to seconds of the run."""

    def __init__(
        self, axes: Axes, lanes: dict[str, float], origin_secs: float, least_sync_secs: float
    ):
        self.axes = axes
        self.lanes = lanes
        self.origin_secs = origin_secs
        self.least_sync_secs = least_sync_secs
        self.window_secs = axes.get_xlim()[1] - axes.get_xlim()[0]
        figure = axes.get_figure(root=True)
        assert figure is not None
        bounds = axes.get_position()
        self.points_per_sec = bounds.width * figure.get_figwidth() * 72 / self.window_secs
        self.block_points = _BLOCK * _LANE_INCHES * 72
        self.renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        self.pixels_per_point = figure.dpi / 72

    # Blocks.

    def lane(self, spans: list[Span]) -> None:
        """Draws one role's blocks: long work first, short work over it, syncs on top."""
        main = [span for span in spans if span.kind not in _QUIET_KINDS]
        work = [span for span in main if span.kind not in (SpanKind.WAIT, *SYNC_KINDS)]
        waits = of_kind(spans, SpanKind.WAIT)
        # One thread may wait for the next batch while another computes: the role is not idle then.
        spans = [span for span in spans if span.kind is not SpanKind.WAIT]
        spans += [part for wait in waits for part in uncovered(wait, work)]
        for span in sorted(spans, key=lambda span: span.kind in SYNC_KINDS):
            if span.duration_secs < _LEAST_DRAWN * self.window_secs and span.kind not in SYNC_KINDS:
                continue
            # Work of another thread is drawn in a strip at the bottom, so that it hides nothing.
            aside = span.attributes.get("background", False) or (
                span.kind in _QUIET_KINDS and overlap_secs([span], main) > 0.2 * span.duration_secs
            )
            self.block(span, share=0.3 if aside else 1.0)

    def block(self, span: Span, share: float) -> None:
        width = span.duration_secs
        left = span.start_secs - self.origin_secs
        if span.kind in SYNC_KINDS and width < self.least_sync_secs:
            left -= (self.least_sync_secs - width) / 2
            width = self.least_sync_secs
        bottom = self.lanes[span.role] - _BLOCK / 2
        waiting = span.kind is SpanKind.WAIT
        patch = Rectangle((left, bottom), width, _BLOCK * share)
        outlined = not waiting and width * self.points_per_sec > 3
        patch.set(facecolor=SPAN_STYLES[span.kind].colour, linewidth=0.7 if outlined else 0)
        patch.set(edgecolor="#D4D4D8" if waiting else "white", hatch="////" if waiting else None)
        patch.set(zorder=6 if span.kind in SYNC_KINDS else 4 + (share < 1))
        self.axes.add_patch(patch)
        if share == 1.0:
            self.label(span, left + width / 2, width)

    def label(self, span: Span, middle: float, width: float) -> None:
        """Writes the longest wording of a block's name that fits into the block, if any."""
        room = width * self.points_per_sec
        for text, size, rotation in _wordings(span):
            across, up = self.text_points(text, size)
            if rotation:
                across, up = up, across
            if across <= room - (1 if rotation else 4) and up <= self.block_points - 1:
                dark = span.kind in (SpanKind.TRAIN, *SYNC_KINDS)
                box = {
                    "facecolor": SPAN_STYLES[SpanKind.WAIT].colour,
                    "edgecolor": "none",
                    "pad": 1.2,
                }
                halo = withStroke(linewidth=2.5, foreground=SPAN_STYLES[span.kind].colour)
                self.axes.text(
                    middle, self.lanes[span.role], text,
                    fontsize=size, rotation=rotation, ha="center", va="center", linespacing=1.05,
                    color="white" if dark else _INK, zorder=7, path_effects=[halo],
                    bbox=box if span.kind is SpanKind.WAIT else None,
                )  # fmt: skip
                return

    def text_points(self, text: str, size: float) -> tuple[float, float]:
        """Measures the width and height of a text, in points."""
        lines = text.split("\n")
        font = FontProperties(size=size)
        widths = [
            self.renderer.get_text_width_height_descent(line, font, False)[0] for line in lines
        ]
        return max(widths) / self.pixels_per_point, 1.15 * size * len(lines)

    # The buffer.

    def buffer_level(self, spans: list[Span], start: float, end: float) -> None:
        """Draws the number of groups in the buffer, as a stepped area with numbers."""
        levels = buffer.fill_level(spans)
        times = [start, *(level.secs for level in levels if start < level.secs < end), end]
        groups = [buffer.level_at(levels, secs) for secs in times]
        bottom = self.lanes["buffer"] - _BLOCK / 2
        scale = _BLOCK / max(*groups, 1)
        x = np.asarray(times) - self.origin_secs
        y = bottom + scale * np.asarray(groups, float)
        self.axes.fill_between(x, bottom, y, step="post", color=_LEVEL, linewidth=0, zorder=4)
        self.axes.step(x, y, where="post", color=_GROUPS, linewidth=1.1, zorder=4.5)
        for left, right, count in zip(x[:-1], x[1:], groups[:-1], strict=True):
            room = (right - left) * self.points_per_sec - 5
            high = scale * count * _LANE_INCHES * 72 > 10
            if high and room > 4 and room > self.text_points(str(count), 8)[0]:
                at = ((left + right) / 2, bottom + scale * count / 2)
                self.axes.text(
                    *at, str(count), fontsize=8, color=_GROUPS, ha="center", va="center", zorder=5
                )

    def groups(self, spans: list[Span], start: float, end: float) -> None:
        """Draws an arrow for the groups of each explorer step, and one for each batch."""
        buffer_y, half = self.lanes["buffer"], _BLOCK / 2
        entries = [e for e in buffer.entries(spans) if e.role in self.lanes]
        entries = [entry for entry in entries if start < entry.end_secs <= end]
        batches = [s for s in of_kind(spans, SpanKind.TRAIN) if s.leases and s.role in self.lanes]
        batches = [span for span in batches if start <= span.start_secs < end]
        if len(entries) + len(batches) > _MOST_ARROWS:
            return
        for entry in entries:
            self.arrow(entry.end_secs, self.lanes[entry.role] - half, buffer_y + half)
        for span in batches:
            self.arrow(span.start_secs, buffer_y - half, self.lanes[span.role] + half)

    def arrow(self, secs: float, top: float, bottom: float) -> None:
        """Draws a vertical arrow down; it passes behind the blocks of lanes that it crosses."""
        x = secs - self.origin_secs
        arrow = FancyArrowPatch(
            (x, top), (x, bottom), arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0
        )
        arrow.set(color=_GROUPS, linewidth=1.3, zorder=3)
        self.axes.add_patch(arrow)
        self.axes.plot([x], [top], "o", markersize=2.6, color=_GROUPS, zorder=8, clip_on=False)

    # Weights.

    def weights(self, spans: list[Span], start: float, end: float) -> None:
        """Draws moves of weights: a band for a collective sync, or a line from save to restore."""
        meetings: dict[Span, list[Span]] = {}
        syncs = of_kind(spans, *SYNC_KINDS)
        published = [span for span in syncs if span.role == TRAINER and span.role in self.lanes]
        for pull in syncs:
            publish = _publication(pull, published) if pull.role in self.lanes else None
            if publish is None or pull.end_secs < start or publish.start_secs > end:
                continue
            if publish.kind in _JOINT_KINDS:
                meetings.setdefault(publish, []).append(pull)
            else:
                self.hand_over(publish, pull)
        for publish, pulls in meetings.items():
            self.meeting(publish, pulls)

    def meeting(self, publish: Span, pulls: list[Span]) -> None:
        """Draws a band over all lanes, for as long as all roles are in the sync."""
        left = max(span.start_secs for span in (publish, *pulls)) - self.origin_secs
        width = min(span.end_secs for span in (publish, *pulls)) - self.origin_secs - left
        if width < self.least_sync_secs:
            left -= (self.least_sync_secs - width) / 2
            width = self.least_sync_secs
        bottom = self.lanes[publish.role]
        top = max(self.lanes[pull.role] for pull in pulls)
        band = Rectangle((left, bottom), width, top - bottom)
        band.set(facecolor=SPAN_STYLES[publish.kind].colour, alpha=0.28, edgecolor="none", zorder=5)
        self.axes.add_patch(band)

    def hand_over(self, publish: Span, pull: Span) -> None:
        x = [publish.end_secs - self.origin_secs, pull.start_secs - self.origin_secs]
        y = [self.lanes[publish.role] + _BLOCK / 2, self.lanes[pull.role] - _BLOCK / 2]
        self.axes.plot(x, y, color=SPAN_STYLES[publish.kind].colour, zorder=5, **_WEIGHTS_LINE)


def _publication(pull: Span, published: list[Span]) -> Span | None:
    """Finds the trainer's sync that published the weights of an explorer's sync."""
    if not is_explorer(pull.role) or pull.version is None:
        return None
    candidates = [
        span
        for span in published
        if span.version == pull.version
        and span.kind is pull.kind
        and span.start_secs <= pull.end_secs
    ]
    return max(candidates, key=lambda span: span.start_secs, default=None)


def _wordings(span: Span) -> list[tuple[str, float, int]]:
    """Returns names for a block, from the longest to the shortest: text, size, rotation."""
    if span.kind is SpanKind.WAIT:
        reason = str(span.attributes.get("reason", "something"))
        whole, broken = f"wait for {reason}", f"wait for\n{reason}"
        flat = [(whole, 8.0, 0), (broken, 8.0, 0), (broken, 6.5, 0), (broken, 6.0, 0)]
        return [*flat, (broken, 6.5, 90), (broken, 6.0, 90)]
    step, version = span.step, span.version
    if span.kind is SpanKind.ROLLOUT:
        if step is None:
            return [] if version is None else [(f"v{version}", 9, 0)]
        named = f"e{step}" if version is None else f"e{step} · v{version}"
        return [(named, 9.5, 0), (named.replace(" · ", "\n"), 8, 0), (f"e{step}", 7, 0)]
    if span.kind is SpanKind.TRAIN and step is not None:
        return [(f"t{step}", 9.5, 0), (f"t{step}", 7, 0)]
    if span.kind in SYNC_KINDS and version is not None:
        return [(f"v{version}", 8, 0), (f"v{version}", 6.5, 90), (f"v{version}", 5.5, 90)]
    if span.kind in SYNC_KINDS or span.kind is SpanKind.INSERT:
        return []
    return [(SPAN_STYLES[span.kind].words, 8, 0)]


def _annotate(figure: Figure, axes: Axes, spans: list[Span], title: str, height: float) -> None:
    """Writes the title, and a legend of the kinds that the figure shows."""
    left = axes.get_position().x0
    figure.text(
        left, 1 - 0.14 / height, title, fontsize=13, fontweight="bold", color=_INK, va="top"
    )
    shown = {span.kind for span in spans}
    handles: list[Patch | Line2D] = []
    for kind, look in SPAN_STYLES.items():
        if kind in shown:
            waiting = kind is SpanKind.WAIT
            patch = Patch(facecolor=look.colour, label=look.legend or look.words)
            patch.set(edgecolor="#A1A1AA" if waiting else look.colour, linewidth=0.5)
            patch.set_hatch("////" if waiting else "")
            handles.append(patch)
    handles.append(Patch(facecolor=_LEVEL, edgecolor=_GROUPS, label="groups in the buffer"))
    handles.append(
        Line2D([], [], color=_GROUPS, marker="v", markersize=5, label="groups enter / leave")
    )
    for kind in sorted(shown & (SYNC_KINDS - _JOINT_KINDS)):
        colour = SPAN_STYLES[kind].colour
        handles.append(Line2D([], [], color=colour, label="weights travel", **_WEIGHTS_LINE))
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(left - 0.005, 0.0), ncols=len(handles),
        fontsize=8.5, frameon=False, handlelength=1.5, columnspacing=1.4, labelcolor=_INK,
    )  # fmt: skip
