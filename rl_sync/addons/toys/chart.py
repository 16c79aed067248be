"""Asks about bar charts, which are drawn here: a bar's height, the highest bar, a difference.

The policy gets the question, and `row["images"]` has the chart: bars of different colors on a grid
with a line for each unit, and a darker line for every fifth. Nothing is written in it, so the scale
is read from the lines.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import UInt8

from rl_sync.addons.toys.drawn_problems import (
    DrawnProblem,
    DrawnTaskConfig,
    QuestionKind,
    draw_problems,
    named_kinds,
)
from rl_sync.addons.toys.scenes import COLORS, WHITE
from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind

KINDS = ("value", "highest", "difference")
_LEAST_UNIT_PIXELS = 2
_GRID, _FIFTH, _AXIS = 225, 165, 0
"""Grays of the lines."""


@dataclasses.dataclass(frozen=True)
class ChartConfig(DrawnTaskConfig):
    """`config.task.chart`.

    Raises:
      ValueError: a kind of question is unknown, or a value is outside its range.
    """

    section = "task.chart"

    questions: str = setting(
        ",".join(KINDS), f"Kinds of questions, separated by commas: {', '.join(KINDS)}."
    )
    most_value: int = setting(
        10,
        "Height of the scale in units. Up to 19, a number within 5 % of the right one is the right"
        " one.",
        least=3,
        greatest=19,
    )
    most_bars: int = setting(
        len(COLORS), "Maximum number of bars in a chart.", least=2, greatest=len(COLORS)
    )
    side_pixels: int = setting(
        56, "Side of the square image.", unit="pixels", least=16, greatest=1024
    )

    def __post_init__(self) -> None:
        check(self, self.section)
        named_kinds(self.section, self.questions, KINDS)
        needed = self.most_value * _LEAST_UNIT_PIXELS + 1
        if self.side_pixels < needed:
            raise ValueError(
                f"task.chart.side_pixels={self.side_pixels} is too small for a scale of"
                f" {self.most_value} units: use {needed} or more, or a lower"
                " task.chart.most_value."
            )

    @property
    def names(self) -> list[str]:
        """Kinds of questions in use."""
        return named_kinds(self.section, self.questions, KINDS)


def load(config: ChartConfig, seed: int) -> Problems:
    """Draws different charts, and holds some of them out by the seed.

    Raises:
      ValueError: there are not enough different charts.
    """
    random = np.random.default_rng([seed, config.problems])
    artist = _ChartArtist(config)
    kinds = {name: artist.kind(name) for name in config.names}
    drawn = draw_problems(kinds, config.wanted, random)
    bounds = ("most_value", "most_bars")
    return config.divide(drawn, random, bounds, "use a higher scale or more bars")


def chart_pixels(
    bars: dict[str, int], most_value: int, side_pixels: int
) -> UInt8[np.ndarray, "side side 3"]:
    """Draws a chart.

    Args:
      bars: height of each bar in units, by its color, from left to right.
      most_value: height of the scale.
    """
    pixels = np.full((side_pixels, side_pixels, 3), WHITE, np.uint8)
    unit, bottom = (side_pixels - 1) // most_value, side_pixels - 1
    for value in range(1, most_value + 1):
        pixels[bottom - value * unit] = _FIFTH if value % 5 == 0 else _GRID
    place = side_pixels // len(bars)
    margin = max(1, place // 6)
    for number, (color, value) in enumerate(bars.items()):
        left = (side_pixels - place * len(bars)) // 2 + number * place
        pixels[bottom - value * unit : bottom, left + margin : left + place - margin] = COLORS[
            color
        ]
    pixels[bottom] = _AXIS
    return pixels


class _ChartArtist:
    """Draws charts with the question that each is made for."""

    def __init__(self, config: ChartConfig) -> None:
        self._config = config

    def kind(self, name: str) -> QuestionKind:
        most = self._config.most_value
        kinds = {
            "value": QuestionKind(range(1, most + 1), self._value),
            "highest": QuestionKind(tuple(COLORS), self._highest),
            "difference": QuestionKind(range(1, most), self._difference),
        }
        return kinds[name]

    def _value(self, aim: int, random: np.random.Generator) -> DrawnProblem:
        color, *others = self._colors(random)
        bars = {color: aim, **self._heights(others, self._config.most_value, random)}
        return self._asked(bars, f"How high is the {color} bar?", str(aim), "number", random)

    def _highest(self, aim: str, random: np.random.Generator) -> DrawnProblem:
        others = [color for color in self._colors(random) if color != aim]
        others = others[: self._config.most_bars - 1]
        height = int(random.integers(2, self._config.most_value + 1))
        bars = {aim: height, **self._heights(others, height - 1, random)}
        return self._asked(bars, "What color is the highest bar?", aim, "words", random)

    def _difference(self, aim: int, random: np.random.Generator) -> DrawnProblem:
        high, low, *others = self._colors(random)
        least = int(random.integers(1, self._config.most_value - aim + 1))
        bars = {high: least + aim, low: least}
        bars |= self._heights(others, self._config.most_value, random)
        question = f"By how much is the {high} bar higher than the {low} bar?"
        return self._asked(bars, question, str(aim), "number", random)

    def _colors(self, random: np.random.Generator) -> list[str]:
        """Draws the colors of two bars or more."""
        count = int(random.integers(2, self._config.most_bars + 1))
        return [str(color) for color in random.permutation(list(COLORS))[:count]]

    def _heights(self, colors: list[str], most: int, random: np.random.Generator) -> dict[str, int]:
        return {color: int(random.integers(1, most + 1)) for color in colors}

    def _asked(
        self,
        bars: dict[str, int],
        question: str,
        answer: str,
        kind: str,
        random: np.random.Generator,
    ) -> DrawnProblem:
        order = random.permutation(list(bars)).tolist()
        pixels = chart_pixels(
            {color: bars[color] for color in order},
            self._config.most_value,
            self._config.side_pixels,
        )
        return DrawnProblem(pixels, question, answer, {"kind": kind})


TASK = TaskKind(ChartConfig, load, "Questions about bar charts.")
