"""Draws the curves of compared runs as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_sync.page.run_comparison import CURVES, SeedGroup

_COLUMNS, _WIDTH_INCHES, _ROW_INCHES = 3, 13.0, 3.2


def picture(groups: Sequence[SeedGroup]) -> bytes:
    """Draws the curves as a PNG: for each group a line, or the median and a band of its seeds."""
    drawn = [(phase, name) for phase, name in CURVES if any(of.curve(phase, name) for of in groups)]
    rows = max(1, -(-len(drawn) // _COLUMNS))
    figure = Figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (phase, name) in enumerate(drawn):
        axes = figure.add_subplot(rows, _COLUMNS, number + 1)
        axes.set_title(name)
        axes.set_xlabel("trainer step")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        for colour, of in enumerate(groups):
            curve = of.curve(phase, name)
            steps, spreads, named = [*curve], [*curve.values()], f"C{colour}"
            median = [one.median for one in spreads]
            axes.plot(steps, median, color=named, label=of.name, marker="." * (len(steps) < 2))
            if len(of.runs) > 1:
                ends = [one.least for one in spreads], [one.greatest for one in spreads]
                axes.fill_between(steps, *ends, color=named, alpha=0.2, linewidth=0)
    handles, labels = figure.axes[0].get_legend_handles_labels() if figure.axes else ([], [])
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(groups)))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
