"""Draws scenes of a few colored shapes on a grid, as an image or as characters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from rl_sync.images import Image

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
}
SHAPES = ("circle", "square", "triangle")
UNITS = 3
"""Side of a grid cell in units; a unit is a character if the scene is written as text."""

UNIT_PIXELS = 9  # Odd, so that a unit has a middle pixel.
_WHITE = (255, 255, 255)
_MARGIN = 0.2  # Margin of a circle, in units: as text, the corners of its cell stay empty.


class SceneShape(NamedTuple):
    """A shape in a scene.

    Attributes:
      column, row: cell of the shape, from the upper left.
    """

    column: int
    row: int
    shape: str
    color: str

    @property
    def name(self) -> str:
        """Name of the shape, with its color."""
        return f"{self.color} {self.shape}"

    def box(self, unit: int) -> list[int]:
        """Returns the shape's box in pixels, [x1, y1, x2, y2], with `unit` pixels for each unit."""
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

    def image(self) -> Image:
        """Returns the image."""
        return Image.of_array(self.pixels())

    def text(self) -> str:
        """Writes the image as lines of characters: the first letter of a color, or a dot."""
        return "".join(_letters(self.pixels()))

    def pixels(self) -> UInt8[np.ndarray, "side side 3"]:
        """Draws the scene."""
        import PIL.Image
        import PIL.ImageDraw

        side = self.cells * UNITS * UNIT_PIXELS
        image = PIL.Image.new("RGB", (side, side), _WHITE)
        draw = PIL.ImageDraw.Draw(image)
        for item in self.items:
            x1, y1, x2, y2 = item.box(UNIT_PIXELS)
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
    middles = pixels[UNIT_PIXELS // 2 :: UNIT_PIXELS, UNIT_PIXELS // 2 :: UNIT_PIXELS]
    codes = (middles.astype(int) @ _PLACES).tolist()
    return ["".join(_NAMES[code] for code in line) + "\n" for line in codes]


_PLACES = np.array([1 << 16, 1 << 8, 1])
_NAMES = {
    int(np.array(color) @ _PLACES): letter
    for letter, color in [(".", _WHITE), *((name[0], color) for name, color in COLORS.items())]
}
