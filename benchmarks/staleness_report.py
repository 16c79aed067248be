"""Tables and figure of the staleness study, from its results.

Results differ more between seeds, because of their SFT, than between algorithms. So runs are
compared seed by seed: with the first algorithm on fresh data, and with the best algorithm at a
bound.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BEGIN, END = "<!-- measured: benchmarks/staleness.py -->", "<!-- measured: end -->"
COLOURS = ("#3F5F7F", "#57A773", "#D9383A", "#8E4EC6", "#E0A526")
_MARGIN = 2.0  # Points within which an algorithm counts as good as the best.

Results = list[dict[str, Any]]


def between_marks(document: Path, begin: str, body: str) -> None:
    """Puts a body between the two marks of a document.

    Raises:
      SystemExit: the document has no marks.
    """
    text = document.read_text() if document.exists() else f"{begin}\n{END}\n"
    before, first, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not first or not end:
        raise SystemExit(f"{document} lacks the lines {begin} and {END}, between which tables go.")
    document.write_text(f"{before}{begin}\n\n{body}\n\n{END}{after}")


def write_report(results: Results, algorithms: list[str], document: Path) -> None:
    """Draws the figure beside the document, and puts the tables between its two marks.

    Raises:
      SystemExit: there are no results, or the document has no marks.
    """
    if not results:
        raise SystemExit("There are no results yet: run the study first.")
    picture = f"![Accuracy over staleness]({document.stem}.png)"
    between_marks(document, BEGIN, "\n\n".join([picture, *tables(results, algorithms)]))
    bounds = sorted({line["bound"] for line in results})
    _draw(results, algorithms, bounds).savefig(
        document.with_suffix(".png"), dpi=160, metadata={"Software": None}
    )


def tables(results: Results, algorithms: list[str]) -> list[str]:
    """Writes the tables of the report, and what stands between them."""
    bounds = sorted({line["bound"] for line in results})
    return [
        _accuracies(results, algorithms, bounds),
        f"Points gained or lost against {algorithms[0]} on fresh data, mean over the seeds ±"
        " its standard error:",
        _changes(results, algorithms, bounds),
        "Effective sample share, (Σw)²/(nΣw²) of the unbounded weights π/π_behavior, in the"
        " second half of the steps:",
        _shares(results, algorithms, bounds),
    ]


def _of(results: Results, algorithm: str, bound: int) -> Results:
    return [r for r in results if (r["algorithm"], r["bound"]) == (algorithm, bound)]


def _spread(numbers: list[float]) -> tuple[float, float]:
    """Returns the mean and its standard error, 0 for a single number."""
    error = statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return statistics.mean(numbers), error


def _differences(some: Results, others: Results) -> list[float]:
    """Returns differences of accuracies, in points, seed by seed."""
    of_seed = {r["seed"]: r["accuracy"] for r in others}
    return [100 * (r["accuracy"] - of_seed[r["seed"]]) for r in some if r["seed"] in of_seed]


def _accuracies(results: Results, algorithms: list[str], bounds: list[int]) -> str:
    rows = []
    for bound in bounds:
        found = {name: some for name in algorithms if (some := _of(results, name, bound))}
        best = max(found.values(), key=_mean)
        cells = [_cell(found.get(name, [])) for name in algorithms]
        as_good = [name for name, some in found.items() if _is_as_good(some, best)]
        rows.append([str(bound), *cells, ", ".join(as_good)])
    return _table(["staleness", *algorithms, "as good as the best"], rows)


def _mean(some: Results) -> float:
    return statistics.mean(100 * r["accuracy"] for r in some)


def _is_as_good(some: Results, best: Results) -> bool:
    mean, error = _spread(_differences(some, best))
    return mean >= -max(_MARGIN, error)


def _cell(some: Results) -> str:
    """The median, the least and the greatest accuracy."""
    if not some:
        return ""
    points = [100 * r["accuracy"] for r in some]
    return f"{statistics.median(points):.0f} ({min(points):.0f} to {max(points):.0f})"


def _changes(results: Results, algorithms: list[str], bounds: list[int]) -> str:
    fresh = _of(results, algorithms[0], bounds[0])

    def change(name: str, bound: int) -> str:
        found = _differences(_of(results, name, bound), fresh)
        return "{:+.1f} ± {:.1f}".format(*_spread(found)) if found else ""

    rows = [[str(bound), *(change(name, bound) for name in algorithms)] for bound in bounds]
    return _table(["staleness", *algorithms], rows)


def _shares(results: Results, algorithms: list[str], bounds: list[int]) -> str:
    def share(name: str, bound: int) -> str:
        found = [r["second_half"]["effective_sample_share"] for r in _of(results, name, bound)]
        return f"{statistics.mean(found):.2f}" if found else ""

    rows = [[str(bound), *(share(name, bound) for name in algorithms)] for bound in bounds]
    return _table(["staleness", *algorithms], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]
    )


def _draw(results: Results, algorithms: list[str], bounds: list[int]) -> Figure:
    """Draws the cost of each bound, and accuracy over trainer steps at the greatest bound."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    ranks = {bound: rank for rank, bound in enumerate(bounds)}
    fresh = _of(results, algorithms[0], bounds[0])
    for name, colour in zip(algorithms, COLOURS, strict=True):
        measured = [bound for bound in bounds if _of(results, name, bound)]
        if not measured:
            continue
        spreads = [_spread(_differences(_of(results, name, bound), fresh)) for bound in measured]
        style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "label": name}
        left.errorbar(
            [ranks[bound] for bound in measured],
            [mean for mean, _ in spreads],
            [error for _, error in spreads],
            capsize=3,
            **style,
        )
        if last := _of(results, name, bounds[-1]):
            curves = zip(*(r["curve"] for r in last), strict=True)
            means = [100 * statistics.mean(points) for points in curves]
            steps = [i * last[0]["steps"] / (len(means) - 1) for i in range(len(means))]
            right.plot(steps, means, **style)
    steps = results[0]["steps"]
    left.set_xticks(range(len(bounds)), [str(bound) for bound in bounds])
    left.set(xlabel="staleness, trainer steps", ylabel="held-out accuracy, points")
    title = f"against {algorithms[0]} on fresh data, after {steps} trainer steps"
    left.set_title(title, loc="left", fontsize=10)
    right.set(xlabel="trainer step", ylabel="held-out accuracy, %")
    right.set_title(f"on the way, at staleness {bounds[-1]}", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
