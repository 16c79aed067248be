"""Asks about images of colored shapes, which are drawn here: counts, colors, sides, sizes, boxes.

The policy gets the question, and `row["images"]` has the image. With `as_text` the image is written
as characters in front of the question instead, with a letter for each color, so that a text-only
policy can learn the task; shapes have one size then:

    ...rrr...
    ...rrr...
    ...rrr...
    .b.......
    .b.......
    bbb......
    How many red shapes are there?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rl_sync.addons.toys.drawn_problems import DrawnTaskConfig, draw_problems, named_kinds
from rl_sync.addons.toys.scenes import COLORS, LEAST_CELL_PIXELS, SHAPES, Scene, SceneShape
from rl_sync.addons.toys.shape_images import KINDS, OF_TWO, ShapesArtist
from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

_TRIES = 20


class ShapesQuestion(NamedTuple):
    """A question about a scene that is written as text.

    Attributes:
      text: the question.
      answer: the right answer.
      fields: other fields of its row; `kind` is the kind for the reward `vision`.
    """

    text: str
    answer: str
    fields: dict[str, Any]


Ask = Callable[[Scene, np.random.Generator], ShapesQuestion | None]
"""A function that asks a question about a scene; None if no question fits."""


def _count(scene: Scene, random: np.random.Generator) -> ShapesQuestion | None:
    color = list(COLORS)[random.integers(len(COLORS))]
    count = sum(item.color == color for item in scene.items)
    return ShapesQuestion(f"How many {color} shapes are there?", str(count), {"kind": "count"})


def _color(scene: Scene, random: np.random.Generator) -> ShapesQuestion | None:
    item = _only_one(scene, lambda one: one.shape, random)
    if item is None:
        return None
    return ShapesQuestion(f"What color is the {item.shape}?", item.color, {"kind": "words"})


def _side(scene: Scene, random: np.random.Generator) -> ShapesQuestion | None:
    one = _only_one(scene, lambda item: item.name, random)
    if one is None:
        return None
    others = [
        item
        for item in scene.items
        if item.column != one.column and sum(item.name == same.name for same in scene.items) == 1
    ]
    if not others:
        return None
    other = others[random.integers(len(others))]
    return ShapesQuestion(
        f"Is the {one.name} left or right of the {other.name}?",
        "left" if one.column < other.column else "right",
        {"kind": "choice", "choices": ["left", "right"]},
    )


def _box(scene: Scene, random: np.random.Generator) -> ShapesQuestion | None:
    item = _only_one(scene, lambda one: one.name, random)
    if item is None:
        return None
    box = item.text_box(1)
    return ShapesQuestion(
        f"Give the box [x1, y1, x2, y2] of the {item.name}.",
        str(box),
        {"kind": "box", "boxes": [box]},
    )


def _only_one(
    scene: Scene, name: Callable[[SceneShape], str], random: np.random.Generator
) -> SceneShape | None:
    """Returns a random item whose name no other item has, or None if there is no such item."""
    names = [name(item) for item in scene.items]
    single = [item for item in scene.items if names.count(name(item)) == 1]
    return single[random.integers(len(single))] if single else None


TEXT_QUESTIONS: dict[str, Ask] = {"count": _count, "color": _color, "side": _side, "box": _box}


@dataclasses.dataclass(frozen=True)
class ShapesConfig(DrawnTaskConfig):
    """`config.task.shapes`.

    Raises:
      ValueError: a kind of question is unknown, or a value is outside its range.
    """

    section = "task.shapes"

    questions: str | None = setting(
        None,
        f"Kinds of questions, separated by commas: {', '.join(KINDS)} (`bigger` only about"
        " images).",
        implied="all of them",
    )
    cells: int = setting(3, "Cells along each side of the grid.", least=2, greatest=16)
    most_shapes: int = setting(4, "Maximum number of shapes in an image.", least=1)
    side_pixels: int = setting(
        56, "Side of the square image.", unit="pixels", least=14, greatest=1024
    )
    as_text: bool = setting(
        False,
        "Writes the image as characters in front of the question, for policies that read only"
        " text.",
    )

    def __post_init__(self) -> None:
        check(self, self.section)
        for name in self.names:
            if self.as_text and name not in TEXT_QUESTIONS:
                raise ValueError(
                    f"task.shapes.questions={name} asks about sizes, and as text all shapes have"
                    " one size: leave it out, or set task.shapes.as_text=false."
                )
        if self.most_shapes > self.cells**2:
            raise ValueError(
                f"task.shapes.most_shapes={self.most_shapes} do not fit into {self.cells} times"
                f" {self.cells} cells: use fewer, or more cells."
            )
        if not self.as_text:
            self._check_images()

    def _check_images(self) -> None:
        if self.side_pixels < self.cells * LEAST_CELL_PIXELS:
            raise ValueError(
                f"task.shapes.side_pixels={self.side_pixels} is too small to tell shapes apart in"
                f" {self.cells} times {self.cells} cells: use"
                f" {self.cells * LEAST_CELL_PIXELS} or more, or fewer cells."
            )
        compared = [name for name in self.names if name in OF_TWO]
        if self.most_shapes < 2 and compared:
            raise ValueError(
                f"task.shapes.most_shapes=1 leaves nothing to compare for the questions"
                f" {', '.join(compared)}: use 2 or more, or leave these questions out."
            )

    @property
    def names(self) -> list[str]:
        """Kinds of questions in use."""
        if self.questions is None:
            return list(TEXT_QUESTIONS if self.as_text else KINDS)
        return named_kinds(self.section, self.questions, KINDS)


def load(config: ShapesConfig, seed: int) -> Problems:
    """Draws different problems, and holds some of them out by the seed.

    Raises:
      ValueError: there are not enough different problems.
    """
    random = np.random.default_rng([seed, config.problems])
    drawn = _written(config, random) if config.as_text else _drawn(config, random)
    problems = config.divide(drawn, random, ("cells", "most_shapes"), "use more cells")
    return dataclasses.replace(problems, charset=_charset() if config.as_text else None)


def _drawn(config: ShapesConfig, random: np.random.Generator) -> list[Prompt]:
    artist = ShapesArtist(config.cells, config.most_shapes, config.side_pixels)
    kinds = {name: artist.kind(name) for name in config.names}
    return draw_problems(kinds, config.wanted, random)


def _written(config: ShapesConfig, random: np.random.Generator) -> list[Prompt]:
    asked: dict[tuple[Scene, str], ShapesQuestion] = {}
    for number in range(config.wanted * _TRIES):
        scene = Scene.drawn(config.cells, config.most_shapes, random)
        question = TEXT_QUESTIONS[config.names[number % len(config.names)]](scene, random)
        if question is not None:
            asked.setdefault((scene, question.text), question)
        if len(asked) == config.wanted:
            break
    return [
        Prompt(i, scene.text() + question.text, question.answer, question.fields)
        for i, ((scene, _), question) in enumerate(asked.items())
    ]


def _charset() -> str:
    """Returns all characters that a question or an answer may contain."""
    words = ["How many shapes are there?", "What color is the", "Is the left or right of the?"]
    words += ["Give the box [x1, y1, x2, y2] of the.", "\n.0123456789[], ", *COLORS, *SHAPES]
    return "".join(sorted(set().union(*words)))


TASK = TaskKind(ShapesConfig, load, "Questions about images of colored shapes.")
