"""Defines the words and colours of each kind of span in the display, timeline and trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.transfer import TRANSFERS


class SpanStyle(NamedTuple):
    """The look of a kind of span.

    Attributes:
      words: its name in the display, and in the timeline's blocks.
      colour: its colour in the timeline.
      style: its style in the display, as rich calls it.
      trace_colour: its colour in the trace: the name in Chrome's palette that is nearest to the
        timeline's colour; None leaves the choice to the viewer.
      legend: its name in the timeline's legend, if that differs from `words`.
    """

    words: str
    colour: str
    style: str
    trace_colour: str | None = None
    legend: str = ""


SPAN_STYLES: Mapping[str, SpanStyle] = {
    SpanKind.ROLLOUT: SpanStyle("rollout", "#F7C948", "yellow", "yellow"),
    SpanKind.TRAIN: SpanStyle("train", "#57A773", "green", "good"),
    SpanKind.TRAIN_AGAIN: SpanStyle("train again", "#8FC7A4", "green", "olive"),
    **{
        sync_kind(name): SpanStyle(
            "sync", one.colour, one.style, one.trace_colour, f"sync ({name})"
        )
        for name, one in TRANSFERS.items()
    },
    SpanKind.WAIT: SpanStyle("wait", "#F4F4F5", "dim", "grey"),
    SpanKind.SFT: SpanStyle("SFT", "#BBDDC5", "green", "olive"),
    SpanKind.EVALUATION: SpanStyle("evaluation", "#A9BFD8", "cyan", "rail_animation"),
    SpanKind.SCORE: SpanStyle("score", "#E9D9B4", "bright_yellow"),
    SpanKind.INSERT: SpanStyle("insert", "#CDD5DD", "blue"),
    SpanKind.SNAPSHOT: SpanStyle("snapshot", "#C8B6AE", "bright_blue"),
    SpanKind.COMPILE: SpanStyle("compile", "#DEDEE3", "bright_black"),
    SpanKind.REPORT: SpanStyle("report", "#B9C7BE", "green"),
}
"""Styles by kind of span, in the order of the timeline's legend."""

INK = "#27272A"
"""The colour of labels in coloured blocks."""

_RIGHT_INCHES = 0.28


class PictureStyle(NamedTuple):
    """Sizes and colours of a picture.

    Attributes:
      width_inches, lane_inches: the width of the picture, and the height of a lane.
      names_inches, names_points: the room for the names of lanes, and the size of their letters.
      paper, bed, line, ink, quiet: colours of the background, lanes, lines, names and numbers.
      wait: the colour of waits.
      level: the colour of the area that shows the buffer's groups.
      groups: the colour of the area's line and numbers, and of the arrows.
    """

    width_inches: float = 14.0
    lane_inches: float = 1.0
    names_inches: float = 1.19
    names_points: float = 11.0
    paper: str = "white"
    bed: str = "#FAFAFA"
    line: str = "#D4D4D8"
    ink: str = INK
    quiet: str = "#71717A"
    wait: str = SPAN_STYLES[SpanKind.WAIT].colour
    level: str = "#C9D9E8"
    groups: str = "#3F5F7F"

    @property
    def lanes_inches(self) -> float:
        """The width of the lanes."""
        return self.width_inches - self.names_inches - _RIGHT_INCHES
