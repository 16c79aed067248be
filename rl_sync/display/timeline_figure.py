"""The timeline of a run as a figure: activity of all roles, and moves of groups and weights."""

from __future__ import annotations

import os
import re
from pathlib import Path

from matplotlib.figure import Figure

from rl_sync.display.figure import draw, encoded
from rl_sync.records.json_lines import read_object
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import of_kind
from rl_sync.role_names import TRAINER
from rl_sync.workdir import Workdir

_MODE_NAMES = {
    "one_step_off_policy": "One-step off-policy",
    "multi_explorer": "Multi-explorer",
}

# The default range of steps. The first steps are skipped: they compile, and dwarf the others.
_SKIPPED_STEPS = 2
_SHOWN_STEPS = 6

Steps = tuple[int, int | None]


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
      workdir, steps, title: see `figure_of`; raises what that raises.
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
      secs: the length of the window, from where the first step begins; None for one that ends with
        the last step.
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
    """Returns six steps after the slow first ones; all steps of a shorter run."""
    taken = [span.step for span in of_kind(spans, SpanKind.TRAIN) if span.step is not None]
    if not taken:
        return 1, None
    first = min(taken)
    if max(taken) - first + 1 >= _SKIPPED_STEPS + _SHOWN_STEPS:
        first += _SKIPPED_STEPS
    return first, first + _SHOWN_STEPS - 1


def steps_window(spans: list[Span], steps: Steps) -> tuple[float, float]:
    """Returns the window of some steps in Unix seconds.

    It begins at the end of the step before the first one; for the run's first step, at the first
    rollout. It ends at the end of the last step. A run without trainer steps is shown whole.

    Raises:
      ValueError: the run does not have these steps; the message gives those that it has.
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
    """Writes the mode and the schedule in `workdir/config.json`; without it the folder's name."""
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
