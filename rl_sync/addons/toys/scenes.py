"""Draws scenes of a few colored shapes on a grid, as an image or as characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
}
SHAPES = ("circle", "square", "triangle")
UNITS = 3
"""Side of a grid cell in units; a unit is a character if the scene is written as text."""

WHITE = (255, 255, 255)
LEAST_CELL_PIXELS = 7
"""Least side of a cell at which sizes and shapes can be told apart."""

_UNIT_PIXELS = 9  # Odd, so that a unit has a middle pixel.
_GAP_PIXELS = 2  # Between two large shapes, so that equal neighbors stay two shapes.
_MARGIN = 0.2  # Margin of a circle, in units: as text, the corners of its cell stay empty.


class SceneShape(NamedTuple):
    """A shape in a scene.

    Attributes:
      column, row: cell of the shape, from the upper left.
      is_small: whether it has half the side of others; as text, all shapes fill their cell.
    """

    column: int
    row: int
    shape: str
    color: str
    is_small: bool = False

    @property
    def name(self) -> str:
        """Name of the shape, with its color."""
        return f"{self.color} {self.shape}"

    def text_box(self, unit: int) -> list[int]:
        """Returns the box [x1, y1, x2, y2] of the shape as text, with `unit` points per unit."""
        x, y, side = self.column * UNITS * unit, self.row * UNITS * unit, UNITS * unit
        margin = round(_MARGIN * unit) if self.shape == "circle" else 0
        return [x + margin, y + margin, x + side - margin, y + side - margin]


class Scene(NamedTuple):
    """Shapes on a square grid, each in its own cell.

    Attributes:
      cells: number of cells along each side of the grid.
    """

    cells: int
    items: tuple[SceneShape, ...]

    @classmethod
    def drawn(cls, cells: int, most: int, random: np.random.Generator) -> Scene:
        """Draws a scene at random, with 1 to `most` shapes."""
        count = int(random.integers(1, most + 1))
        places = random.choice(cells * cells, count, replace=False)
        names = list(COLORS)
        return cls(
            cells,
            tuple(
                SceneShape(
                    column=int(place) % cells,
                    row=int(place) // cells,
                    shape=SHAPES[random.integers(len(SHAPES))],
                    color=names[random.integers(len(names))],
                )
                for place in sorted(places)
            ),
        )

    def box(self, item: SceneShape, side_pixels: int) -> list[int]:
        """Returns the box of a shape in the image, [x1, y1, x2, y2] in pixels."""
        cell = side_pixels // self.cells
        large = cell - _GAP_PIXELS
        side = (large + 1) // 2 if item.is_small else large
        start = (side_pixels - cell * self.cells) // 2 + (cell - side) // 2
        x, y = start + item.column * cell, start + item.row * cell
        return [x, y, x + side, y + side]

    def pixels(self, side_pixels: int) -> UInt8[np.ndarray, "side side 3"]:
        """Draws the scene as a square image."""
        return _drawn(side_pixels, [(item, self.box(item, side_pixels)) for item in self.items])

    def text(self) -> str:
        """Writes the scene as lines of characters: the first letter of a color, or a dot."""
        boxes = [(item, item.text_box(_UNIT_PIXELS)) for item in self.items]
        return "".join(_letters(_drawn(self.cells * UNITS * _UNIT_PIXELS, boxes)))


def _drawn(side: int, boxes: Sequence[tuple[SceneShape, Sequence[int]]]) -> np.ndarray:
    """Draws each shape into its box, on white."""
    import PIL.Image
    import PIL.ImageDraw

    image = PIL.Image.new("RGB", (side, side), WHITE)
    draw = PIL.ImageDraw.Draw(image)
    for item, (x1, y1, x2, y2) in boxes:
        color = COLORS[item.color]
        corners = (x1, y1, x2 - 1, y2 - 1)
        if item.shape == "square":
            draw.rectangle(corners, fill=color)
        elif item.shape == "circle":
            draw.ellipse(corners, fill=color)
        else:
            draw.polygon(((x1 + x2 - 1) / 2, y1, x1, y2 - 1, x2 - 1, y2 - 1), fill=color)
    return np.asarray(image)


def _letters(pixels: np.ndarray) -> list[str]:
    """Returns the letter of the color in the middle of each unit, line by line."""
    middles = pixels[_UNIT_PIXELS // 2 :: _UNIT_PIXELS, _UNIT_PIXELS // 2 :: _UNIT_PIXELS]
    codes = (middles.astype(int) @ _PLACES).tolist()
    return ["".join(_NAMES[code] for code in line) + "\n" for line in codes]


_PLACES = np.array([1 << 16, 1 << 8, 1])
_NAMES = {
    int(np.array(color) @ _PLACES): letter
    for letter, color in [(".", WHITE), *((name[0], color) for name, color in COLORS.items())]
}
