"""Writes a report on one run as one self-contained HTML page."""

from __future__ import annotations

import base64
import collections
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import rl_sync
from rl_sync.display import text
from rl_sync.display.templating import environment, style
from rl_sync.display.timeline_figure import (
    default_steps,
    draw,
    encoded,
    run_title,
    steps_window,
)
from rl_sync.page import views
from rl_sync.records.accuracy import MeasuredAccuracy
from rl_sync.records.metric_catalog import EVALUATION, RL
from rl_sync.records.rollouts.recorded_images import ShownImage
from rl_sync.records.rollouts.rollout_records import Rollout, describe_removed
from rl_sync.records.run_outcome import read_versions
from rl_sync.records.run_records import RunRecords

_CURVES = (
    "reward_mean",
    "entropy",
    "loss",
    "gradient_norm",
    "completion_tokens_mean",
    "truncated_fraction",
    "logprob_gap",
    "mismatch",
)
_EXAMPLE_STEPS = 4


class Tile(NamedTuple):
    """A figure at the top, with its name and a note."""

    name: str
    value: str
    more: str = ""
    is_bad: bool = False


class Picture(NamedTuple):
    """A picture as the source of an image, with words about it."""

    words: str
    source: str


def render(run: RunRecords, changes: Sequence[tuple[str, str]] | None, plan: str) -> str:
    """Returns the page.

    Args:
      run: records of the run.
      changes: settings that differ from the defaults, with their values; None if unknown.
      plan: the schedule in words; empty if unknown.
    """
    ages = sum(run.flow.staleness.values(), collections.Counter[int]())
    context: views.TemplateValues = {
        "name": run.name,
        "path": str(run.workdir),
        "mode": run.setting("sync", "mode"),
        "ending": _ending(run),
        "failed": run.outcome.failed if run.outcome else None,
        "start": run.start_secs,
        "last": run.last_secs,
        "tiles": list(_tiles(run)),
        "alarms": run.periods,
        "plan": plan.rsplit("\n\n", 1) if plan else [],  # Lines of the drawing must not wrap.
        "changes": changes,
        "figures": _figures(run, _CURVES, accuracy=True),
        "bound": run.staleness_bound,
        "staleness": _figures(run, ("staleness_max", "staleness_mean")),
        "ages": sorted(ages.items()),
        "most": max(ages.values(), default=1),
        "tokens": ages.total(),
        "summary": run.summary,
        "timeline": _timeline(run),
        "flow": run.flow,
        "account": run.tokens,
        "devices": run.device_time,
        "examples": list(_examples(run)),
        "gone": describe_removed(run.workdir),
        "versions": read_versions(run.workdir),
        "style": style("rl_sync.page", "page.css", "report.css"),
        "now": time.time(),
        "made_by": rl_sync.__version__,
    }
    return environment("rl_sync.page").get_template("report.html").render(context)


def _ending(run: RunRecords) -> str:
    outcome = run.outcome
    if outcome is None:
        return "its end is not recorded: it goes on, or was killed"
    when = text.at(outcome.secs)
    return f"stopped at {when}: {outcome.stopped}" if outcome.stopped else f"ended at {when}"


def _tiles(run: RunRecords) -> Iterator[Tile]:
    """Yields the results of the run."""
    yield _accuracy("accuracy before RL", run.accuracy_before)
    yield _accuracy("accuracy last", run.accuracy_after)
    yield Tile("reward, last step", text.number(run.last("reward_mean")))
    steps = run.setting("trainer", "steps")
    yield Tile("trainer steps", str(run.steps), f"of {steps}" if steps else "")
    bound, most = run.staleness_bound, run.staleness_max
    is_bad = most is not None and bound is not None and most > bound
    allowed = f"trainer steps, of at most {text.number(bound)}"
    yield Tile("greatest staleness", text.number(most), allowed, is_bad)
    if run.summary:
        rate = f"{run.summary.rollout_tokens_per_sec:,.0f}"
        yield Tile("tokens/s generated", rate, "from the first rollout to the last train step")
    if run.summary and (lost := run.summary.lost).outages:
        yield Tile("effective", f"{lost.effective_share:.1%}", text.lost(lost))
    if run.secs is not None:
        yield Tile("seconds", f"{run.secs:,.0f}", "between the first and the last record")
    if run.outcome and run.outcome.digest:
        yield Tile("digest", run.outcome.digest, "of the parameters at the end")


def _accuracy(name: str, measured: MeasuredAccuracy | None) -> Tile:
    if measured is None:
        return Tile(name, "–")
    low, high = measured.low, measured.high
    interval = "" if low is None or high is None else f"95% interval {low:.1%} to {high:.1%}"
    return Tile(name, f"{measured.value:.1%}", interval)


def _figures(run: RunRecords, names: Sequence[str], accuracy: bool = False) -> list[views.Figure]:
    """Draws the metrics that the run has."""
    there = {name for line in run.counted(RL) for name in line}
    found = [views.figure([run], RL, name) for name in names if name in there]
    if accuracy and any("accuracy" in line for line in run.metrics.of_phase(EVALUATION)):
        found.insert(1, views.figure([run], EVALUATION, "accuracy"))
    return found


def _timeline(run: RunRecords) -> Picture | None:
    """Draws the timeline of a few steps; None if there is nothing to draw."""
    spans = run.spans.joined
    if not spans:
        return None
    first, last = default_steps(spans)
    try:
        figure = draw(spans, steps_window(spans, (first, last)), run_title(run.workdir))
    except ValueError:
        return None
    words = f"Timeline of trainer steps {first} to {min(last or run.steps, run.steps)}"
    source = base64.b64encode(encoded(figure, "svg")).decode()
    return Picture(words, f"data:image/svg+xml;base64,{source}")


def _examples(run: RunRecords) -> Iterator[tuple[int, list[tuple[str, Rollout, list[ShownImage]]]]]:
    """Yields the best, a median and the worst completion of a few steps."""
    recorded = run.rollouts
    rows = recorded.find().rows
    steps = sorted({row.step for row in rows if row.reward is not None})
    places = {round(i * (len(steps) - 1) / (_EXAMPLE_STEPS - 1)) for i in range(_EXAMPLE_STEPS)}
    for step in [steps[place] for place in sorted(places)] if steps else []:
        judged = [row for row in rows if row.step == step and row.reward is not None]
        ranked = sorted(judged, key=lambda row: (row.reward, -row.drawn_tokens))
        picked = {"least": ranked[0], "middle": ranked[len(ranked) // 2], "greatest": ranked[-1]}
        wholes = [(words, recorded.whole(row)) for words, row in picked.items()]
        yield step, [(words, one, run.images_of(one)) for words, one in wholes if one is not None]
