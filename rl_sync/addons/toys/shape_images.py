"""Questions about images of colored shapes of two sizes: counts, colors, sides, sizes, boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rl_sync.addons.toys.drawn_problems import DrawnProblem, QuestionKind
from rl_sync.addons.toys.scenes import COLORS, SHAPES, Scene, SceneShape

KINDS = ("count", "color", "side", "bigger", "box")
OF_TWO = ("side", "bigger")
"""Kinds of questions that compare two shapes."""

_Looks = tuple[str, str]
"""Shape and color."""

_LOOKS: tuple[_Looks, ...] = tuple((shape, color) for shape in SHAPES for color in COLORS)


class ShapesArtist:
    """Draws scenes with the question that each is made for.

    Args:
      cells: cells along each side of the grid.
      most_shapes: maximum number of shapes in an image.
      side_pixels: side of the image.
    """

    def __init__(self, cells: int, most_shapes: int, side_pixels: int) -> None:
        self._cells, self._most, self._side_pixels = cells, most_shapes, side_pixels

    def kind(self, name: str) -> QuestionKind:
        """Returns a kind of question by its name, one of `KINDS`."""
        kinds = {
            "count": QuestionKind(range(self._most + 1), self._count),
            "color": QuestionKind(tuple(COLORS), self._color),
            "side": QuestionKind(("left", "right"), self._side),
            "bigger": QuestionKind(tuple(COLORS), self._bigger),
            "box": QuestionKind(range(self._cells**2), self._box),
        }
        return kinds[name]

    def _count(self, aim: int, random: np.random.Generator) -> DrawnProblem:
        color = str(random.choice(list(COLORS)))
        count = int(random.integers(max(aim, 1), self._most + 1))
        looks = [(str(random.choice(SHAPES)), color) for _ in range(aim)]
        looks += _others(count - aim, lambda one: one[1] != color, random)
        scene = self._scene(looks, random)
        return self._asked(scene, f"How many {color} shapes are there?", str(aim), kind="count")

    def _color(self, aim: str, random: np.random.Generator) -> DrawnProblem:
        shape = str(random.choice(SHAPES))
        looks = [(shape, aim)]
        looks += _others(self._more(1, random), lambda one: one[0] != shape, random)
        scene = self._scene(looks, random)
        return self._asked(scene, f"What color is the {shape}?", aim, kind="words")

    def _side(self, aim: str, random: np.random.Generator) -> DrawnProblem | None:
        two = [_LOOKS[i] for i in random.choice(len(_LOOKS), 2, replace=False)]
        looks = two + _others(self._more(2, random), lambda one: one not in two, random)
        scene = self._scene(looks, random)
        one, other = sorted(scene.items[:2], key=lambda item: item.column)
        if one.column == other.column:
            return None
        if aim == "right":
            one, other = other, one
        question = f"Is the {one.name} left or right of the {other.name}?"
        return self._asked(scene, question, aim, kind="choice", choices=["left", "right"])

    def _bigger(self, aim: str, random: np.random.Generator) -> DrawnProblem:
        other = str(random.choice([color for color in COLORS if color != aim]))
        looks = [(str(random.choice(SHAPES)), color) for color in (aim, other)]
        looks += _others(self._more(2, random), lambda one: one[1] not in (aim, other), random)
        scene = self._scene(looks, random)
        big, small, *rest = scene.items
        scene = scene._replace(
            items=(big._replace(is_small=False), small._replace(is_small=True), *rest)
        )
        choices = [str(one) for one in random.permutation([aim, other])]
        question = f"Which is bigger, the {choices[0]} or the {choices[1]} shape?"
        return self._asked(scene, question, aim, kind="choice", choices=choices)

    def _box(self, aim: int, random: np.random.Generator) -> DrawnProblem:
        one = _LOOKS[random.integers(len(_LOOKS))]
        looks = [one, *_others(self._more(1, random), lambda other: other != one, random)]
        scene = self._scene(looks, random, first=aim)
        item = scene.items[0]
        box = scene.box(item, self._side_pixels)
        question = f"Give the box [x1, y1, x2, y2] of the {item.name}."
        return self._asked(scene, question, str(box), kind="box", boxes=[box])

    def _more(self, asked: int, random: np.random.Generator) -> int:
        """Draws the number of shapes beside those that the question asks about."""
        return int(random.integers(0, self._most - asked + 1))

    def _scene(
        self, looks: Sequence[_Looks], random: np.random.Generator, first: int | None = None
    ) -> Scene:
        """Places shapes in different cells, the first one in the cell `first` if it is given."""
        places = random.permutation(self._cells**2).tolist()
        if first is not None:
            places.remove(first)
            places.insert(0, first)
        small = random.integers(2, size=len(looks)).tolist()
        return Scene(
            self._cells,
            tuple(
                SceneShape(
                    column=place % self._cells,
                    row=place // self._cells,
                    shape=shape,
                    color=color,
                    is_small=bool(is_small),
                )
                for (shape, color), place, is_small in zip(looks, places, small, strict=False)
            ),
        )

    def _asked(self, scene: Scene, question: str, answer: str, **fields: object) -> DrawnProblem:
        return DrawnProblem(scene.pixels(self._side_pixels), question, answer, fields)


def _others(
    count: int, fits: Callable[[_Looks], bool], random: np.random.Generator
) -> list[_Looks]:
    """Draws the looks of further shapes among those that fit."""
    fitting = [looks for looks in _LOOKS if fits(looks)]
    return [fitting[i] for i in random.integers(len(fitting), size=count)]
