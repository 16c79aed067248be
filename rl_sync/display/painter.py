"""Paints a timeline: blocks of work and waits, the buffer's groups, moves of weights."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from rl_sync.display.span_styles import INK, SPAN_STYLES, PictureStyle
from rl_sync.records import buffer_level as buffer
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind, sync_kind
from rl_sync.records.summary import of_kind, uncovered, union
from rl_sync.role_names import TRAINER, is_explorer
from rl_sync.transfer import TRANSFERS

BLOCK = 0.68
"""The height of a block, where lanes are 1 apart."""

WEIGHTS_LINE: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (3, 2)), "alpha": 0.8}
"""The style of lines along which weights travel."""

JOINT_KINDS = frozenset(sync_kind(name) for name, one in TRANSFERS.items() if one.is_joint)
"""The kinds of syncs in which trainer and explorers meet."""

_QUIET_KINDS = frozenset(
    {
        SpanKind.SCORE,
        SpanKind.INSERT,
        SpanKind.SNAPSHOT,
        SpanKind.COMPILE,
        SpanKind.EVALUATION,
        SpanKind.REPORT,
    }
)
_LEAST_SYNC = 0.0045  # Syncs are drawn at least this wide, as a share of the window,
_MOST_SYNCS = 0.1  # unless that would give all syncs of a lane more than this share.
_NARROW_POINTS = 3.0  # Narrower blocks have no edge and no label.
_MOST_ARROWS = 120  # More arrows would hide everything else.


class Painter:
    """Draws into one pair of axes, and converts times from Unix seconds to seconds of the run."""

    def __init__(
        self, axes: Axes, lanes: dict[str, float], origin_secs: float, style: PictureStyle
    ):
        self.axes, self.lanes, self.origin_secs, self.style = axes, lanes, origin_secs, style
        self.window_secs = axes.get_xlim()[1] - axes.get_xlim()[0]
        self.points_per_sec = style.lanes_inches * 72 / self.window_secs
        self.block_points = BLOCK * style.lane_inches * 72
        figure = axes.get_figure(root=True)
        assert figure is not None
        self.renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        self.pixels_per_point = figure.dpi / 72
        self.measured: dict[tuple[str, float], tuple[float, float]] = {}

    # Blocks.

    def lane(self, spans: list[Span]) -> None:
        """Draws one role's blocks: long work first, short work over it, syncs on top."""
        main = [span for span in spans if span.kind not in _QUIET_KINDS]
        work = union(span for span in main if span.kind not in (SpanKind.WAIT, *SYNC_KINDS))
        covered = union(main)
        syncs = of_kind(spans, *SYNC_KINDS)
        least_secs = self.window_secs * min(_LEAST_SYNC, _MOST_SYNCS / max(len(syncs), 1))
        narrow: dict[tuple[SpanKind, float], list[Span]] = {}
        # One thread may wait for the next batch while another computes: the role is not idle then.
        waits = [part for one in of_kind(spans, SpanKind.WAIT) for part in uncovered(one, work)]
        others = [span for span in spans if span.kind is not SpanKind.WAIT]
        for span in (*waits, *sorted(others, key=lambda span: span.kind in SYNC_KINDS)):
            # Work of another thread is drawn in a strip at the bottom, so that it hides nothing.
            aside = span.attributes.get("background", False) or (
                span.kind in _QUIET_KINDS and _share(span, covered) > 0.2
            )
            share, drawn = 0.3 if aside else 1.0, span
            if span.kind in SYNC_KINDS and span.duration_secs < least_secs:
                middle = (span.start_secs + span.end_secs) / 2
                ends = middle - least_secs / 2, middle + least_secs / 2
                drawn = dataclasses.replace(span, start_secs=ends[0], end_secs=ends[1])
            if drawn.duration_secs * self.points_per_sec < _NARROW_POINTS:
                narrow.setdefault((span.kind, share), []).append(drawn)
            else:
                self.block(span, drawn, share)
        for (kind, share), found in narrow.items():
            self.narrow_blocks(spans[0].role, kind, share, found)

    def block(self, span: Span, drawn: Span, share: float) -> None:
        """Draws a span as a block with a label; the name of the shape describes the span."""
        waiting = span.kind is SpanKind.WAIT
        start, width = drawn.start_secs - self.origin_secs, drawn.duration_secs
        patch = Rectangle((start, self.lanes[span.role] - BLOCK / 2), width, BLOCK * share)
        patch.set(facecolor=self.colour(span.kind), linewidth=0 if waiting else 0.7)
        patch.set(edgecolor=self.style.line if waiting else "white")
        patch.set(zorder=_height(span.kind, share), hatch="////" if waiting else None)
        words, said = SPAN_STYLES[span.kind].words, next(iter(_wordings(span)), ("",))[0]
        named = said if said.startswith(words) else f"{words} {said}".strip()
        ends = span.start_secs - self.origin_secs, span.end_secs - self.origin_secs
        patch.set_gid(f"{named}: {ends[0]:.2f} to {ends[1]:.2f} s, {span.duration_secs:.3f} s long")
        self.axes.add_patch(patch)
        if share == 1.0:
            self.label(span, start + width / 2, width)

    def narrow_blocks(self, role: str, kind: SpanKind, share: float, found: list[Span]) -> None:
        """Draws narrow blocks of a kind; blocks less than half a point apart are drawn as one."""
        more = 0.25 / self.points_per_sec
        wider = [
            dataclasses.replace(one, start_secs=one.start_secs - more, end_secs=one.end_secs + more)
            for one in found
        ]
        self.axes.broken_barh(
            [(start - self.origin_secs, end - start) for start, end in union(wider)],
            (self.lanes[role] - BLOCK / 2, BLOCK * share),
            facecolors=self.colour(kind), linewidth=0, zorder=_height(kind, share),
        )  # fmt: skip

    def colour(self, kind: SpanKind) -> str:
        return self.style.wait if kind is SpanKind.WAIT else SPAN_STYLES[kind].colour

    def label(self, span: Span, middle: float, width: float) -> None:
        """Writes the longest wording of a block's name that fits into the block, if any."""
        room = width * self.points_per_sec
        for text, size, rotation in _wordings(span):
            across, up = self.text_points(text, size)
            if rotation:
                across, up = up, across
            if across <= room - (1 if rotation else 4) and up <= self.block_points - 1:
                waiting = span.kind is SpanKind.WAIT
                light = span.kind in (SpanKind.TRAIN, *SYNC_KINDS)
                box = {"facecolor": self.style.wait, "edgecolor": "none", "pad": 1.2}
                self.axes.text(
                    middle, self.lanes[span.role], text,
                    fontsize=size, rotation=rotation, ha="center", va="center", linespacing=1.05,
                    color="white" if light else self.style.ink if waiting else INK, zorder=7,
                    bbox=box if waiting else None,
                )  # fmt: skip
                return

    def text_points(self, text: str, size: float) -> tuple[float, float]:
        """Measures the width and height of a text, in points."""
        if (text, size) not in self.measured:
            lines, font = text.split("\n"), FontProperties(size=size)
            widths = [
                self.renderer.get_text_width_height_descent(line, font, False)[0] for line in lines
            ]
            found = max(widths) / self.pixels_per_point, 1.15 * size * len(lines)
            self.measured[text, size] = found
        return self.measured[text, size]

    # The buffer.

    def buffer_level(self, spans: list[Span], start: float, end: float) -> None:
        """Draws the number of groups in the buffer, as a stepped area with numbers."""
        levels = buffer.fill_level(spans)
        within = [level.secs for level in levels if start < level.secs < end]
        # Of several changes within a point, the last one counts.
        shown = {int((secs - start) * self.points_per_sec): secs for secs in within}
        times = [start, *(within if len(shown) < len(within) / 4 else shown.values()), end]
        groups = [buffer.level_at(levels, secs) for secs in times]
        bottom = self.lanes["buffer"] - BLOCK / 2
        scale = BLOCK / max(*groups, 1)
        x = np.asarray(times) - self.origin_secs
        y = bottom + scale * np.asarray(groups, float)
        colour = self.style.groups
        self.axes.fill_between(
            x, bottom, y, step="post", color=self.style.level, linewidth=0, zorder=4
        )
        self.axes.step(x, y, where="post", color=colour, linewidth=1.1, zorder=4.5)
        self.axes.annotate(
            f"at most {max(groups)}", (0, self.lanes["buffer"]),
            xytext=(-8, -0.9 * self.style.names_points), textcoords="offset points",
            xycoords=("axes fraction", "data"),
            fontsize=7.5, color=self.style.quiet, ha="right", va="top",
        )  # fmt: skip
        for left, right, count in zip(x[:-1], x[1:], groups[:-1], strict=True):
            room = (right - left) * self.points_per_sec - 5
            high = scale * count * self.style.lane_inches * 72 > 10
            if high and room > 4 and room > self.text_points(str(count), 8)[0]:
                at = ((left + right) / 2, bottom + scale * count / 2)
                self.axes.text(
                    *at, str(count), fontsize=8, color=colour, ha="center", va="center", zorder=5
                )

    def groups(self, spans: list[Span], start: float, end: float) -> None:
        """Draws an arrow for the groups of each explorer step, and one for each batch."""
        buffer_y, half = self.lanes["buffer"], BLOCK / 2
        arrows = [
            (entry.end_secs - self.origin_secs, self.lanes[entry.role] - half, buffer_y + half)
            for entry in buffer.entries(spans)
            if entry.role in self.lanes and start < entry.end_secs <= end
        ]
        arrows += [
            (batch.start_secs - self.origin_secs, buffer_y - half, self.lanes[batch.role] + half)
            for batch in of_kind(spans, SpanKind.TRAIN)
            if batch.leases and batch.role in self.lanes and start <= batch.start_secs < end
        ]
        if not arrows or len(arrows) > _MOST_ARROWS:
            return
        x, top, bottom = np.asarray(arrows).T
        colour = self.style.groups
        # Arrows pass behind the blocks of the lanes that they cross.
        shafts = LineCollection([((at, high), (at, low)) for at, high, low in arrows])
        shafts.set(color=colour, linewidth=1.3, zorder=3)
        self.axes.add_collection(shafts, autolim=False)
        heads: dict[str, Any] = {"linestyle": "none", "color": colour, "clip_on": False}
        self.axes.plot(x, top, marker="o", markersize=2.6, zorder=8, **heads)
        self.axes.plot(x, bottom + 0.04, marker="v", markersize=5, zorder=3, **heads)

    # Weights.

    def weights(self, spans: list[Span], start: float, end: float) -> None:
        """Draws moves of weights: a band for a collective sync, or a line from save to restore."""
        syncs = [span for span in of_kind(spans, *SYNC_KINDS) if span.role in self.lanes]
        published: dict[tuple[SpanKind, int | None], list[Span]] = collections.defaultdict(list)
        for span in syncs:
            if span.role == TRAINER:
                published[span.kind, span.version].append(span)
        meetings: dict[Span, list[Span]] = {}
        lines: dict[SpanKind, list[tuple[tuple[float, float], ...]]] = {}
        for pull in syncs:
            if not is_explorer(pull.role) or pull.version is None or pull.end_secs < start:
                continue
            before = [
                span
                for span in published.get((pull.kind, pull.version), ())
                if span.start_secs <= min(pull.end_secs, end)
            ]
            publish = max(before, key=lambda span: span.start_secs, default=None)
            if publish is None:
                continue
            if publish.kind in JOINT_KINDS:
                meetings.setdefault(publish, []).append(pull)
            else:
                lines.setdefault(publish.kind, []).append(self.hand_over(publish, pull))
        for publish, pulls in meetings.items():
            self.meeting(publish, pulls)
        for kind, ways in lines.items():
            colour = SPAN_STYLES[kind].colour
            found = LineCollection(ways, color=colour, zorder=5, **WEIGHTS_LINE)
            self.axes.add_collection(found, autolim=False)

    def meeting(self, publish: Span, pulls: list[Span]) -> None:
        """Draws a band over all lanes, for as long as all roles are in the sync."""
        left = max(span.start_secs for span in (publish, *pulls)) - self.origin_secs
        width = min(span.end_secs for span in (publish, *pulls)) - self.origin_secs - left
        least_secs = _NARROW_POINTS / self.points_per_sec
        if width < least_secs:
            left, width = left - (least_secs - width) / 2, least_secs
        bottom = self.lanes[publish.role]
        top = max(self.lanes[pull.role] for pull in pulls)
        band = Rectangle((left, bottom), width, top - bottom)
        band.set(facecolor=SPAN_STYLES[publish.kind].colour, alpha=0.28, edgecolor="none", zorder=5)
        self.axes.add_patch(band)

    def hand_over(self, publish: Span, pull: Span) -> tuple[tuple[float, float], ...]:
        """Returns the line from the end of a publication to the start of a pull."""
        return (
            (publish.end_secs - self.origin_secs, self.lanes[publish.role] + BLOCK / 2),
            (pull.start_secs - self.origin_secs, self.lanes[pull.role] - BLOCK / 2),
        )


def _share(span: Span, covered: Sequence[tuple[float, float]]) -> float:
    """Returns the share of a span that some disjoint intervals cover."""
    alone = sum(part.duration_secs for part in uncovered(span, covered))
    return 1 - alone / span.duration_secs if span.duration_secs else 0.0


def _height(kind: SpanKind, share: float) -> float:
    """Returns the rank of a block; blocks of higher rank are drawn over the others."""
    return 6 if kind in SYNC_KINDS else 4 + (share < 1)


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
