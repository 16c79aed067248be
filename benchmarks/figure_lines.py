"""Lines of figures by commit: which of them are compared, what is worse, and their picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

REGRESSION, CHANGE, SPEED_CHANGE = 0.10, 0.03, 0.05
"""Growth of a compared figure that is a regression, and changes that are worth a line.

Speeds of the same commit mostly differ by less than 5 %.
"""

MACHINE = 0.35
"""Greatest difference between the references of machines whose speeds are compared."""

COLOURS = ("#3F5F7F", "#57A773", "#D9383A", "#8E4EC6", "#E0A030", "#808080")
Line = Mapping[str, Any]


class Compared(NamedTuple):
    """A comparison of two lines.

    Attributes:
      worse: for each quantity that grew too much, its figure before and now.
      notes: what is not compared, and why, a sentence each.
    """

    worse: dict[str, tuple[float, float]]
    notes: list[str]


def compare(now: Line, before: Line) -> Compared:
    """Compares speeds and compiled programs; in both, less is better."""
    notes = [*_obstacles(now, before)]
    groups: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    if not notes:
        groups["speed"] = (_speeds(now), _speeds(before))
    programs, earlier = now.get("programs", {}), before.get("programs", {})
    for target in sorted({*programs, *earlier}):
        counts = [one.get(target, {}).get("cases") for one in (programs, earlier)]
        if None not in counts and counts[0] != counts[1]:
            notes.append(
                f"programs {target}: {counts[0]} cases, and {counts[1]} before: not compared."
            )
        else:
            groups[f"programs {target}"] = (programs.get(target, {}), earlier.get(target, {}))
    worse = {}
    for group, (figures, known) in groups.items():
        for name, figure in figures.items():
            if name not in known:
                notes.append(f"{group} {name}: there is no earlier figure.")
            elif figure > (1 + REGRESSION) * known[name]:
                worse[f"{group} {name}"] = (known[name], figure)
        notes += [f"{group} {name}: it was not measured." for name in known if name not in figures]
    return Compared(worse, notes)


def repeated(first: Compared, second: Compared) -> list[str]:
    """Returns a sentence for each regression that two measurements have."""
    return [
        f"{name} grew from {before:.4g} to {figure:.4g} and, measured again,"
        f" {second.worse[name][1]:.4g}: more than {REGRESSION:.0%}."
        for name, (before, figure) in first.worse.items()
        if name in second.worse
    ]


def changes(now: Line, before: Line) -> list[str]:
    """Returns the names of the figures that are new, gone, or changed by over 3 %, speeds 5 %."""
    figures, known = dict(_figures(now)), dict(_figures(before))
    return [
        name
        for name in sorted({*figures, *known})
        if name not in figures
        or name not in known
        or abs(figures[name] - known[name])
        > (SPEED_CHANGE if name.startswith("speed ") else CHANGE) * abs(known[name])
    ]


def _obstacles(now: Line, before: Line) -> Iterator[str]:
    """Yields why the speeds of two lines cannot be compared."""
    for name in ("python", "jax"):
        if now[name] != before[name]:
            yield (
                f"Speed is not compared: this is {name} {now[name]}, and the newest line is of"
                f" {name} {before[name]}."
            )
    references, known = now["reference_ms"], before["reference_ms"]
    shares = [references[name] / known[name] for name in references if name in known]
    if shares and max(shares) > (1 + MACHINE) * min(shares):
        yield (
            "Speed is not compared: this machine is of another kind than that of the newest line,"
            f" as its references take {min(shares):.2f} to {max(shares):.2f} times as long."
        )


def _speeds(line: Line) -> dict[str, float]:
    return {name: median for name, (_, median, _) in line.get("speed", {}).items()}


def _figures(line: Line) -> Iterator[tuple[str, float]]:
    """Yields all figures of a line with their names, of speeds the median."""
    yield from ((f"speed {name}", median) for name, median in _speeds(line).items())
    for target, figures in line.get("programs", {}).items():
        yield from ((f"programs {target} {name}", figure) for name, figure in figures.items())
    for group in ("sizes", "tests", "test_secs"):
        yield from ((f"{group} {name}", figure) for name, figure in line.get(group, {}).items())


def picture(lines: Sequence[Line]) -> Figure:
    """Draws each quantity over commits, in panels by kind, relative to its first figure."""
    panels = {
        "speed: CPU time, in times of the reference": "speed ",
        "compiled programs": "programs ",
        "sources": "sizes ",
        "number of tests": "tests ",
        "seconds of tests": "test_secs ",
    }
    drawing = Figure(figsize=(15, 8), layout="constrained")
    FigureCanvasAgg(drawing)
    *axes, legend = drawing.subplots(2, 3).flat
    figures = [dict(_figures(line)) for line in lines]
    for axis, (title, prefix) in zip(axes, panels.items(), strict=True):
        names = dict.fromkeys(name for one in figures for name in one if name.startswith(prefix))
        axis.set_title(f"{title}, relative")
        for number, name in enumerate(names):
            _draw(axis, lines, [one.get(name) for one in figures], name, number)
        axis.set_xticks(range(len(lines)), [line["commit"] for line in lines], rotation=60)
        axis.tick_params(labelsize=7)
        if names:
            axis.legend(fontsize=7)
    legend.set_axis_off()
    return drawing


def _draw(
    axis: Axes, lines: Sequence[Line], found: Sequence[float | None], name: str, number: int
) -> None:
    """Draws a quantity; of a speed also the least and the greatest round."""
    places = [place for place, figure in enumerate(found) if figure is not None]
    values = [figure for figure in found if figure is not None]
    first = next((value for value in values if value), 1.0)
    group, _, short = name.partition(" ")
    colour = COLOURS[number % len(COLOURS)]
    style = ("-", "--", ":")[number // len(COLOURS) % 3]
    relative = [value / first for value in values]
    label = f"{short}, {first:.4g}"
    axis.plot(places, relative, style, marker=".", color=colour, label=label, linewidth=1.2)
    if group == "speed":
        ends = [lines[place]["speed"][short] for place in places]
        least, greatest = (
            _relative((end[0] for end in ends), first),
            _relative((end[2] for end in ends), first),
        )
        axis.fill_between(places, least, greatest, color=colour, alpha=0.12)


def _relative(values: Iterable[float], first: float) -> list[float]:
    return [value / first for value in values]
