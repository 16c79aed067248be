"""Draws the timeline of a run: activity of all roles, and moves of groups and weights.

Files, reports, notebooks and the page in the browser all show this figure.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from rl_sync.display.painter import BLOCK, JOINT_KINDS, WEIGHTS_LINE, Painter
from rl_sync.display.span_styles import SPAN_STYLES, PictureStyle
from rl_sync.records.json_lines import read_object
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import clipped, of_kind
from rl_sync.role_names import TRAINER, is_explorer, role_order, split
from rl_sync.workdir import Workdir

_MODE_NAMES = {
    "one_step_off_policy": "One-step off-policy",
    "multi_explorer": "Multi-explorer",
}

# The default range of steps. The first steps are skipped: they compile, and dwarf the others.
_SKIPPED_STEPS = 2
_SHOWN_STEPS = 6

Steps = tuple[int, int | None]

_BELOW_INCHES, _TITLE_INCHES, _ROW_INCHES = 0.98, 0.42, 0.2
_LEGEND_INCHES = 1.25  # Width of a legend's entry.


def draw_timeline(
    workdir: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] | None = None,
    *,
    steps: Steps | None = None,
    title: str | None = None,
) -> tuple[Path, Path]:
    """Draws a run's timeline, and returns the paths of the PNG and the SVG.

    Args:
      out_dir: the folder for the pictures; None for `workdir`.
      workdir, steps, title: see `figure_of`.

    Raises:
      FileNotFoundError, ValueError: see `figure_of`.
    """
    figure = figure_of(workdir, steps=steps, title=title)
    return _save(figure, Path(workdir if out_dir is None else out_dir))


def figure_of(
    workdir: str | os.PathLike[str],
    *,
    steps: Steps | None = None,
    secs: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draws a run's timeline, and returns the figure.

    Args:
      workdir: the work directory of the run, which may still be running.
      steps: the first and the last trainer step to show; (1, None) for all. None shows six steps,
        from the third on if the run has that many.
      secs: the length of the window, which begins with the first step; None for a window that ends
        with the last step.
      title: the title; None for the mode and the schedule in `workdir/config.json`.

    Raises:
      FileNotFoundError: the work directory has no spans.
      ValueError: the run does not have these steps, or there are no spans yet.
    """
    spans = read_spans(workdir)
    if not spans:
        raise ValueError(f"{workdir} holds no spans yet: no role has done anything. Wait a little.")
    start, end = steps_window(spans, steps or default_steps(spans))
    window = (start, end if secs is None else start + secs)
    return draw(spans, window, run_title(workdir) if title is None else title)


def parse_steps(text: str) -> Steps:
    """Reads a range of trainer steps: "3:8", "3:" for the third to the last, "3", or "all".

    Raises:
      ValueError: the text has none of these forms.
    """
    match = re.fullmatch(r"(\d+)(:(\d*))?", text.strip())
    if text.strip() == "all":
        return 1, None
    if not match:
        raise ValueError(f'--steps={text} is not a range of trainer steps such as "3:8", or "all".')
    first = int(match[1])
    if match[2] is None:
        return first, first
    return first, int(match[3]) if match[3] else None


def default_steps(spans: list[Span]) -> Steps:
    """Returns six steps after the two slow first ones, or the first six of a shorter run."""
    taken = [span.step for span in of_kind(spans, SpanKind.TRAIN) if span.step is not None]
    if not taken:
        return 1, None
    first = min(taken)
    if max(taken) - first + 1 >= _SKIPPED_STEPS + _SHOWN_STEPS:
        first += _SKIPPED_STEPS
    return first, first + _SHOWN_STEPS - 1


def steps_window(spans: list[Span], steps: Steps) -> tuple[float, float]:
    """Returns the window of some steps in Unix seconds.

    It begins when the step before the first one ends, or with the first rollout if there is no step
    before. It ends with the last step. A run without trainer steps is shown whole.

    Raises:
      ValueError: the run does not have these steps; the message gives the steps that it has.
    """
    trains = [span for span in of_kind(spans, SpanKind.TRAIN) if span.step is not None]
    if not trains:
        return spans[0].start_secs, max(span.end_secs for span in spans)
    known = sorted({span.step for span in trains if span.step is not None})
    first, last = steps[0], known[-1] if steps[1] is None else steps[1]
    shown = [span for span in trains if span.step is not None and first <= span.step <= last]
    if not shown:
        raise ValueError(
            f"The run has no trainer steps {first} to {last}: it has {known[0]} to {known[-1]}."
        )
    before = [span.end_secs for span in trains if span.step is not None and span.step < first]
    if before:
        start = max(before)
    else:
        rollouts = of_kind(spans, SpanKind.ROLLOUT)
        start = min(span.start_secs for span in (*shown, *rollouts))
    end = max(span.end_secs for span in shown)
    # The sync after the last step is shown too.
    syncs = of_kind(spans, *SYNC_KINDS, role=TRAINER)
    published = {span.step for span in shown}
    end = max([end, *(span.end_secs for span in syncs if span.version in published)])
    margin = min(0.01 * (end - start), 0.2)
    return start - margin, end + margin


def run_title(workdir: str | os.PathLike[str]) -> str:
    """Returns the mode and schedule in `workdir/config.json`; the folder's name if it has none."""
    sync = read_object(Workdir(workdir).config).get("sync")
    if not isinstance(sync, dict):
        return Path(workdir).resolve().name
    mode = str(sync.get("mode", Path(workdir).resolve().name))
    mode = _MODE_NAMES.get(mode, f"{mode[:1].upper()}{mode[1:]}".replace("_", " "))
    said = {
        "interval": sync.get("interval"),
        "offset": sync.get("offset"),
        "max staleness": sync.get("max_staleness"),
    }
    parts = [f"{name} {value}" for name, value in said.items() if value is not None]
    parts += [f"{sync['transfer']} transfer"] if sync.get("transfer") else []
    return mode + (f" · {', '.join(parts)}" if parts else "")


def _save(figure: Figure, folder: Path) -> tuple[Path, Path]:
    """Writes both pictures, each first under a temporary name."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = Workdir(folder).timeline
    for path, kind in ((png, "png"), (svg, "svg")):
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(encoded(figure, kind))
        temporary.replace(path)
    return png, svg


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
      window: the start and end of the part, in Unix seconds.
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
        roles = _working(visible)
        if not roles:
            last_secs = max((span.end_secs for span in spans), default=0.0) - origin_secs
            raise ValueError(
                f"Nothing happened between {start - origin_secs:.1f} s and"
                f" {end - origin_secs:.1f} s; the run's spans lie between 0.0 s and"
                f" {last_secs:.1f} s."
            )
    lanes, handles = _lanes(roles), _legend({span.kind for span in visible}, style)
    rows = -(-len(handles) // int(style.width_inches / _LEGEND_INCHES))
    columns = -(-len(handles) // rows)
    figure, axes = _empty(len(lanes), rows, title, style)
    _set_up(axes, lanes, (start - origin_secs, end - origin_secs), style)
    painter = Painter(axes, lanes, origin_secs, style)
    painter.buffer_level(spans, start, end)
    painter.groups(spans, start, end)
    painter.weights(spans, start, end)
    for role in roles:
        painter.lane([span for span in visible if span.role == role])
    left = style.names_inches / style.width_inches
    figure.legend(
        handles=handles, loc="lower left", ncols=columns,
        bbox_to_anchor=(left - 0.005 if rows == 1 else 0.0, 0.0),
        fontsize=8.5, frameon=False, handlelength=1.5, columnspacing=1.4, labelcolor=style.ink,
    )  # fmt: skip
    return figure


def _working(spans: Iterable[Span]) -> list[str]:
    """Returns the explorers and the trainer that have spans, in the order of lanes."""
    roles = {span.role for span in spans}
    return sorted((one for one in roles if is_explorer(one) or one == TRAINER), key=role_order)


def encoded(figure: Figure, kind: str, dpi: int = 160) -> bytes:
    """Encodes a figure as `png` or `svg`; the same figure gives the same bytes."""
    file = io.BytesIO()
    with mpl.rc_context({"hatch.linewidth": 0.5, "svg.hashsalt": "rl_sync"}):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()


def _empty(lanes: int, legend_rows: int, title: str, style: PictureStyle) -> tuple[Figure, Axes]:
    """Makes a figure with a title and room for lanes and a legend; returns the lanes' axes too."""
    below = _BELOW_INCHES + _ROW_INCHES * (legend_rows - 1)
    above = _TITLE_INCHES if title else 0.06
    high = style.lane_inches * lanes
    height, width = below + high + above, style.width_inches
    figure = Figure(figsize=(width, height), facecolor=style.paper)
    FigureCanvasAgg(figure)
    left = style.names_inches / width
    axes = figure.add_axes((left, below / height, style.lanes_inches / width, high / height))
    figure.text(
        left, 1 - 0.14 / height, title, fontsize=13, fontweight="bold", color=style.ink, va="top"
    )
    return figure, axes


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
