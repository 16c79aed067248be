"""Draws the timeline of a run for the page: the same picture as in files, for any window."""

from __future__ import annotations

import dataclasses
import re
import threading

from rl_sync.display.span_styles import PictureStyle
from rl_sync.display.timeline_figure import draw, encoded
from rl_sync.page.activity import open_spans, roles_of
from rl_sync.records.json_lines import JsonObject
from rl_sync.records.run_records import RunRecords
from rl_sync.records.spans import Span

FOLLOWED_SECS = 60.0
"""Default window in seconds, which follows the end of a run."""

_DOTS_PER_INCH = 96
_STYLE = PictureStyle(lane_inches=0.72, names_inches=0.92, names_points=8.5, paper="none")
_DARK = _STYLE._replace(
    bed="#27272A",
    line="#52525B",
    ink="#F4F4F5",
    quiet="#A1A1AA",
    wait="#18181B",
    level="#34506B",
    groups="#8FB3D6",
)
_LEAST_PIXELS = 240
_ONE_AT_A_TIME = threading.Lock()  # Matplotlib's settings are global to all threads.


def picture(
    run: RunRecords,
    window: tuple[float, float] | None = None,
    *,
    secs: float = FOLLOWED_SECS,
    pixels: int = 1200,
    dark: bool = False,
) -> JsonObject:
    """Draws a window of a run.

    Args:
      window: its start and end, in seconds since the run's first span; None, or an empty window,
        for the last `secs` seconds of the run.
      pixels: the width of the picture, in pixels of the page.
      dark: whether it stands on a dark ground.

    Returns:
      `svg`, `start`, `end`, `duration` of the run in seconds, and the place of the lanes in pixels:
      `left` and `width`.
    """
    spans = [*run.spans.joined, *(_placed(run, span) for span in open_spans(run))]
    first = min((span.start_secs for span in spans), default=0.0)
    duration = max((span.end_secs for span in spans), default=first) - first
    start, end = window or (0.0, 0.0)
    if end <= start:
        end = max(duration, 1.0)
        start = max(0.0, end - secs)
    inches = max(pixels, _LEAST_PIXELS) / _DOTS_PER_INCH
    style = (_DARK if dark else _STYLE)._replace(width_inches=inches)
    with _ONE_AT_A_TIME:
        figure = draw(spans, (first + start, first + end), roles=roles_of(run), style=style)
        svg = encoded(figure, "svg").decode()
    return {
        "svg": without_styles(svg),
        "start": start,
        "end": end,
        "duration": duration,
        "left": style.names_inches * _DOTS_PER_INCH,
        "width": style.lanes_inches * _DOTS_PER_INCH,
    }


def _placed(run: RunRecords, span: Span) -> Span:
    """Moves a span to its place in the joined timeline of a run that was resumed."""
    start, end = map(run.spans.place, (span.start_secs, span.end_secs))
    return dataclasses.replace(span, start_secs=start, end_secs=max(start, end))


def without_styles(svg: str) -> str:
    """Returns the `svg` element of a picture, with attributes in place of inline styles.

    The page's security policy allows only styles from its own files; see `Guard`.
    """
    svg = re.sub(r"<(style|metadata)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = svg.replace("<svg", '<svg stroke-linejoin="round" stroke-linecap="butt"', 1)
    return re.sub(r' style="([^"]*)"', lambda found: _attributes(found[1]), svg)


def _attributes(style: str) -> str:
    pairs = (one.split(":", 1) for one in style.split(";") if one.strip())
    return "".join(f' {name.strip()}="{value.strip()}"' for name, value in pairs)
