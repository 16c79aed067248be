"""Computes the values for the template of each view of the page."""

from __future__ import annotations

import collections
import csv
import functools
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from rl_sync.display import text
from rl_sync.page.activity import newest_version, roles_now, roles_of, versions_of
from rl_sync.page.charts import Series, chart, smoothed
from rl_sync.records.alarms import are_of_completions
from rl_sync.records.json_lines import is_inside
from rl_sync.records.metric_catalog import EVALUATION, LINE_FIELDS, METRICS, RL, SFT, find
from rl_sync.records.metrics import as_number
from rl_sync.records.rollouts.rollout_index import TableRow
from rl_sync.records.rollouts.rollout_records import Rollout, RolloutFilter, describe_removed
from rl_sync.records.run_outcome import read_versions
from rl_sync.records.run_records import RunRecords
from rl_sync.setting import flat

TemplateValues = dict[str, Any]
"""Values of a view's template, by the names that it has for them."""

PAGE_ROWS = 100
"""Number of completions on one page of the table."""

MOST_WHOLE = 64
"""Number of completions that are shown whole at once."""

_TOP = ("reward_mean", "staleness_max", "entropy", "completion_tokens_mean", "gradient_norm")
_OTHERS = "Others"
_RECENT_STEPS = 50
_EXAMPLES = 3
_LOG_LINES = 400
_MOST_LOG_BYTES = 1 << 17
AXES = {"step": "step", "seconds": "s", "tokens": "tokens"}
"""Quantities of horizontal axes, with units: steps, seconds since the first record, tokens of
prompts and completions."""

_PHASES = {RL: "Trainer steps", EVALUATION: "Evaluations", SFT: "SFT"}


class Query(NamedTuple):
    """Conditions on the completions of a table, and their order; see `ordered`."""

    selection: RolloutFilter = RolloutFilter()
    order: str = "-step"


class Figure(NamedTuple):
    """A chart with its name and its sentence from the catalog."""

    name: str
    meaning: str
    normal: str
    svg: Markup


class CurveStyle(NamedTuple):
    """Options of the curves.

    Attributes:
      by: quantity of the horizontal axis, one of `AXES`.
      smoothing: weight of the average so far in `charts.smoothed`; 0 for none.
      is_log: whether vertical axes are logarithmic.
      find: words; only metrics whose name or meaning contains all of them are drawn.
    """

    by: str = "step"
    smoothing: float = 0.0
    is_log: bool = False
    find: str = ""

    def fits(self, phase: str, name: str) -> bool:
        """Says whether a metric is drawn."""
        metric = find(phase, name)
        text = f"{name} {metric.meaning if metric else ''}".casefold()
        return all(word in text for word in self.find.casefold().split())


def overview(runs: Sequence[RunRecords]) -> TemplateValues:
    """Returns the runs' progress: their steps, alarms, main curves, and their roles' activity."""
    figures = [figure(runs, RL, name) for name in _TOP]
    figures.insert(1, figure(runs, EVALUATION, "accuracy"))
    return {"runs": [_head(*one) for one in enumerate(runs)], "figures": figures}


def _head(number: int, run: RunRecords) -> TemplateValues:
    periods, accuracies = run.periods, run.accuracies
    now = [one for one in periods if one.last_step == run.last_step]
    return {
        "number": number,
        "name": run.name,
        "mode": run.setting("sync", "mode"),
        "step": run.steps,
        "steps": run.setting("trainer", "steps"),
        "sft": None if run.steps else len(run.metrics.of_phase(SFT)),
        "last_secs": run.last_secs,
        "state": text.state(run),
        "outcome": run.outcome,
        "left_secs": run.left_secs,
        "machine": run.usage.now,
        "reward": run.last("reward_mean"),
        "accuracy": accuracies[-1][1].value if accuracies else None,
        "staleness": run.last("staleness_max"),
        "bound": run.staleness_bound,
        "tokens_per_sec": run.last("tokens_per_sec"),
        "buffered": run.flow.now.buffered,
        "lost": run.lost,
        "alarms": now,
        "examples": _examples(run) if are_of_completions(one.alarm for one in now) else [],
        "passed": [one for one in periods if one not in now],
        "roles": roles_now(run),
        "newest": newest_version(run),
    }


def _examples(run: RunRecords) -> list[TableRow]:
    """Returns some completions of the last recorded step, of different problems if possible."""
    run.refresh()
    last = run.rollouts.last_step
    found = run.rollouts.find(RolloutFilter(last or 0, last)).rows
    of_problems = {row.prompt_id: row for row in reversed(found)}
    rows = [*dict.fromkeys([*reversed(of_problems.values()), *found])]
    return rows[:_EXAMPLES]


def curves(runs: Sequence[RunRecords], look: CurveStyle = CurveStyle()) -> TemplateValues:  # noqa: B008
    """Returns all metrics of the runs, in the order of the catalog."""
    sections = []
    for phase, title in _PHASES.items():
        names = {name for run in runs for line in run.metrics.of_phase(phase) for name in line}
        by_part: dict[str, list[str]] = collections.defaultdict(list)
        fitting = {name for name in names - set(LINE_FIELDS) if look.fits(phase, name)}
        for name in sorted(fitting, key=lambda name: _place(phase, name)):
            by_part[_place(phase, name)[2]].append(name)
        for part, members in by_part.items():
            figures = [figure(runs, phase, name, look) for name in members]
            sections.append((f"{title}: {part}", figures))
    return {"sections": sections, "look": look, "axes": AXES}


@functools.cache
def _place(phase: str, name: str) -> tuple[int, int, str, str]:
    """Returns the place of a metric in the catalog: a sort key, with the title of its part."""
    metric = find(phase, name)
    for number, (title, part) in enumerate(METRICS[phase].items()):
        if metric in part:
            return number, part.index(metric), title, name
    return len(METRICS[phase]), 0, _OTHERS, name


def figure(
    runs: Sequence[RunRecords],
    phase: str,
    name: str,
    look: CurveStyle = CurveStyle(),  # noqa: B008
) -> Figure:
    """Draws a metric of runs into one chart."""
    series = []
    for number, run in enumerate(runs):
        points = _points(run, phase, name, look.by)
        if look.smoothing:
            series.append(Series(run.name, points, colour=number, is_faint=True))
            points = [*smoothed(points, look.smoothing)]
        series.append(Series(run.name, points, colour=number))
    bounds = {run.staleness_bound for run in runs} - {None}
    bound = max(filter(None, bounds), default=0) if bounds else None
    metric = find(phase, name)
    unit = f" ({metric.unit})" if metric and metric.unit else ""
    return Figure(
        name,
        metric.meaning + unit if metric else "",
        metric.normal if metric else "",
        chart(
            series,
            bound=bound if name == "staleness_max" else None,
            x_unit=AXES[look.by],
            is_log=look.is_log,
        ),
    )


def _points(run: RunRecords, phase: str, name: str, by: str) -> list[tuple[float, float | None]]:
    """Returns points of a metric, without lines that have no place on the horizontal axis."""
    lines, start = run.metrics.of_phase(phase), run.start_secs
    tokens = {0: 0.0} | {line["step"]: line.get("num_tokens") for line in run.metrics.of_phase(RL)}
    places = {
        "step": lambda line: line["step"],
        "seconds": lambda line: run.elapsed(float(line.get("time") or start)),
        "tokens": lambda line: None if phase == SFT else tokens.get(line["step"]),
    }
    found = ((places[by](line), as_number(line.get(name))) for line in lines)
    return [(float(x), y) for x, y in found if x is not None]


def settings(run: RunRecords, words: str) -> TemplateValues:
    """Returns the settings whose names contain some words, and the versions of a run's packages."""
    found = [
        (name, "not set" if value is None else str(value))
        for name, value in flat(run.config)
        if all(word in name.casefold() for word in words.casefold().split())
    ]
    return {"found": found, "words": words, "versions": read_versions(run.workdir)}


def logs(run: RunRecords, name: str | None) -> TemplateValues:
    """Returns the end of a log (None for the first one), and the names of all logs.

    Raises:
      KeyError: there is no such log.
    """
    paths = {path.stem: path for path in sorted(run.workdir.logs.glob("*.log"))}
    paths = {stem: one for stem, one in paths.items() if is_inside(one, Path(run.workdir))}
    chosen = next(iter(paths), None) if name is None else name
    return {"logs": [*paths], "log": chosen, "text": "" if chosen is None else _end(paths[chosen])}


def _end(path: Path) -> str:
    """Returns the last lines of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    cut = size > _MOST_LOG_BYTES
    return "\n".join(lines[1 if cut else 0 :][-_LOG_LINES:])


def table_of_metrics(run: RunRecords) -> str:
    """Writes all metrics of a run as CSV: a row for each step of a phase, a column per metric."""
    lines = run.metrics.lines
    names = sorted({name for line in lines for name in line} - set(LINE_FIELDS))
    file = io.StringIO()
    rows = csv.DictWriter(file, [*LINE_FIELDS, *names], lineterminator="\n")
    rows.writeheader()
    rows.writerows(lines)
    return file.getvalue()


def flow(run: RunRecords) -> TemplateValues:
    """Returns data on groups: their places, reasons of drops, staleness, versions in use."""
    moments = run.flow.moments
    start = moments[0].secs if moments else 0.0
    names = {"buffered": "in the buffer", "generating": "being generated"}
    now = [
        Series(words, [(m.secs - start, getattr(m, name)) for m in moments], colour, True)
        for colour, (name, words) in enumerate(names.items())
    ]
    sums = [
        Series(name, [(m.secs - start, getattr(m, name)) for m in moments], colour, True)
        for colour, name in enumerate(("trained", "dropped"))
    ]
    versions = [
        Series(role, [(s - start, v) for s, v in versions_of(run, role)], colour, True)
        for colour, role in enumerate(roles_of(run))
    ]
    ages, recent = run.flow.staleness, collections.Counter[int]()
    for step in sorted(ages)[-_RECENT_STEPS:]:
        recent += ages[step]
    newest = newest_version(run)
    return {
        "flow": run.flow,
        "account": run.tokens,
        "devices": run.device_time,
        "bound": run.staleness_bound,
        "ages": sorted(recent.items()),
        "most": max(recent.values(), default=1),
        "tokens": sum(recent.values()),
        "recent_steps": min(_RECENT_STEPS, len(ages)),
        "newest": newest,
        "roles": [one for one in roles_now(run) if one.version is not None],
        "now_chart": chart(now, x_unit="s"),
        "sums_chart": chart(sums, x_unit="s"),
        "versions_chart": chart([one for one in versions if one.points], x_unit="s"),
        "legends": [[one.name for one in of] for of in (now, sums, versions)],
        "staleness": [figure([run], RL, name) for name in ("staleness_max", "staleness_mean")],
    }


def table(run: RunRecords, query: Query, page: int) -> TemplateValues:
    """Returns a page of the table of completions."""
    found = run.rollouts.find(*query)
    pages = max(1, -(-len(found.rows) // PAGE_ROWS))
    page = min(max(page, 1), pages)
    return {
        "rows": found.rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        "count": len(found.rows),
        "all": run.rollouts.count,
        "is_cut": found.is_cut,
        "gone": describe_removed(run.workdir),
        "page": page,
        "pages": pages,
    }


def group(run: RunRecords, step: int, lease: int) -> TemplateValues:
    """Returns the whole completions of one group."""
    found = run.rollouts.find(RolloutFilter(step, step, lease=lease)).rows
    return _whole(run, list(run.rollouts.wholes(found[:MOST_WHOLE])), len(found))


def history(run: RunRecords, prompt_id: int) -> TemplateValues:
    """Returns the whole completions of one problem over the steps, but only the last if many."""
    found = run.rollouts.find(RolloutFilter(prompt_id=prompt_id)).rows
    return _whole(run, list(run.rollouts.wholes(found[-MOST_WHOLE:])), len(found))


def _whole(run: RunRecords, rollouts: list[Rollout], count: int) -> TemplateValues:
    return {
        "rollouts": [(one, text.tokens(one)) for one in rollouts],
        "first": rollouts[0] if rollouts else None,
        "images": run.images_of(rollouts[0]) if rollouts else [],
        "count": count,
        "gone": describe_removed(run.workdir),
    }
