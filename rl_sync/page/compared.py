"""Writes a comparison of runs as one self-contained HTML page."""

from __future__ import annotations

import time
from collections.abc import Sequence

import rl_sync
from rl_sync.display.templating import environment, style
from rl_sync.page.charts import Area, Series, chart
from rl_sync.page.run_comparison import CURVES, SeedGroup
from rl_sync.page.views import Figure
from rl_sync.records.metric_catalog import find


def render(groups: Sequence[SeedGroup], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Returns the page.

    Args:
      groups: groups of runs.
      rows: rows of the table: the name of a figure, and a cell for each group.
      notes: lines below the table.
    """
    settings = dict.fromkeys(name for of in groups for name in of.settings)
    return (
        environment("rl_sync.page")
        .get_template("compared.html")
        .render(
            groups=groups,
            settings=[[name, *(of.settings.get(name, "–") for of in groups)] for name in settings],
            rows=rows,
            notes=notes,
            figures=[_figure(groups, phase, name) for phase, name in CURVES],
            has_bands=any(len(of.runs) > 1 for of in groups),
            style=style("rl_sync.page", "page.css", "report.css"),
            now=time.time(),
            made_by=rl_sync.__version__,
        )
    )


def _figure(groups: Sequence[SeedGroup], phase: str, name: str) -> Figure:
    """Draws a metric of all groups into one chart."""
    series, areas = [], []
    for colour, of in enumerate(groups):
        curve = of.curve(phase, name)
        series.append(Series(of.name, [(step, one.median) for step, one in curve.items()], colour))
        if len(of.runs) > 1:
            ends = [(float(step), one.least, one.greatest) for step, one in curve.items()]
            areas.append(Area(ends, colour))
    metric = find(phase, name)
    return Figure(name, metric.meaning if metric else "", "", chart(series, areas=areas))
