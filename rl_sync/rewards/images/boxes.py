"""Boxes and points in images: reading them, their overlap, and their matching."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rl_sync.images import Size

_MOST_CHARACTERS = 20_000
_MOST_BOXES = 500
_DEEPEST = 6
_MOST_COORDINATE = 1e9  # Areas from larger coordinates would lose digits.
_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
_SEPARATOR = r"(?:\s*[,;]\s*|\s+)"
_CORNER = rf"[\[(]\s*({_NUMBER}){_SEPARATOR}({_NUMBER})\s*[\])]"
_CORNERS = re.compile(rf"{_CORNER}(?:{_SEPARATOR}|\s*(?:and|to|-|–)\s*)?{_CORNER}")
"""A box as two corners, `(x1,y1),(x2,y2)`."""
_TRAILING_COMMA = re.compile(r",(?=\s*[\]}])")
_FENCE = re.compile(r"```(?:\w+)?\n?(.*?)```", re.DOTALL)
_BOX_FIELDS = ("bbox_2d", "bbox", "box_2d", "box", "coordinates")
_POINT_FIELDS = ("point_2d", "point", "coordinates")
_POINT_TAG = re.compile(rf"""\bx\s*=\s*["']?({_NUMBER})["']?\s*,?\s*y\s*=\s*["']?({_NUMBER})""")


class UnreadableBoxesError(ValueError):
    """Raised for a text or value without boxes or points; the message says why."""


class Box(NamedTuple):
    """A box by its corners, x to the right and y downwards.

    Attributes:
      label: the name of its content; None if none was given.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str | None = None

    @property
    def area(self) -> float:
        """The area; 0 if the corners are in the wrong order."""
        return max(0.0, self.x2 - self.x1) * max(0.0, self.y2 - self.y1)

    def holds(self, x: float, y: float) -> bool:
        """Says whether a point is inside, the edges included."""
        return self.x1 <= x <= self.x2 and self.y1 <= y <= self.y2


FORMATS: dict[str, Callable[[float, float, float, float], tuple[float, float, float, float]]] = {
    "xyxy": lambda x1, y1, x2, y2: (x1, y1, x2, y2),
    "xywh": lambda x, y, w, h: (x, y, x + w, y + h),
    "cxcywh": lambda x, y, w, h: (x - w / 2, y - h / 2, x + w / 2, y + h / 2),
    "yxyx": lambda y1, x1, y2, x2: (x1, y1, x2, y2),
}
"""Conversions of a box's four numbers into its corners, by their order."""

SCALES: dict[str, Callable[[Size], tuple[float, float]]] = {
    "pixels": lambda size: (1.0, 1.0),
    "unit": lambda size: (float(size.width), float(size.height)),
    "thousand": lambda size: (size.width / 1000, size.height / 1000),
}
"""Pixels per unit of a coordinate, to the right and downwards, by scale: `pixels`, `unit` (0 to 1)
or `thousand` (0 to 1000)."""


def read_boxes(text: str, order: str) -> list[Box]:
    """Reads the boxes of an answer: JSON, or groups of four numbers in brackets.

    Args:
      order: the order of the four numbers, one of `FORMATS`.

    Raises:
      UnreadableBoxesError: the text has neither boxes nor `[]`, an answer without boxes.
    """
    return [_box(numbers, order, label) for numbers, label in _groups(text, 4, _BOX_FIELDS)]


def read_points(text: str) -> list[tuple[float, float]]:
    """Reads the points of an answer: JSON, pairs of numbers in brackets, or x="…" y="…".

    Raises:
      UnreadableBoxesError: there are no points.
    """
    if tags := _POINT_TAG.findall(text[:_MOST_CHARACTERS]):
        return [(float(x), float(y)) for x, y in tags[:_MOST_BOXES]]
    return [(x, y) for (x, y), _ in _groups(text, 2, _POINT_FIELDS)]


def boxes_of(value: object, order: str) -> list[Box]:
    """Reads the boxes of a row's field: one box or a list of them, as JSON text or as values.

    Raises:
      UnreadableBoxesError: the value is malformed, or a box has no area.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UnreadableBoxesError(f"{reprlib.repr(value)} is not JSON") from error
    if isinstance(value, np.ndarray):
        value = value.tolist()
    boxes = [_box(numbers, order, label) for numbers, label in _walk(value, 4, _BOX_FIELDS)]
    for box in boxes:
        if not box.area:
            raise UnreadableBoxesError(
                f"the box with the corners {list(box[:4])} has no area: is the order of its numbers"
                f" {order}?"
            )
    return boxes


def scaled(boxes: Sequence[Box], scale: str, size: Size | None) -> list[Box]:
    """Returns boxes in pixels; without a size, returns them unchanged."""
    if size is None:
        return list(boxes)
    right, down = SCALES[scale](size)
    return [
        Box(box.x1 * right, box.y1 * down, box.x2 * right, box.y2 * down, box.label)
        for box in boxes
    ]


def iou(a: Box, b: Box) -> float:
    """Computes intersection over union, `|a ∩ b| / |a ∪ b|`; 0 for boxes with different labels."""
    if a.label is not None and b.label is not None and _plain(a.label) != _plain(b.label):
        return 0.0
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / (a.area + b.area - shared)


def matched(values: Float[np.ndarray, "rows columns"], by: str) -> list[tuple[int, int]]:
    """Matches rows with columns, each at most once; pairs of value 0 are left out.

    Args:
      by: `hungarian` for the greatest sum (Kuhn 1955), `greedy` for the greatest pair first.
    """
    if not values.size:
        return []
    if by == "hungarian":
        from scipy.optimize import linear_sum_assignment

        pairs = zip(*linear_sum_assignment(values, maximize=True), strict=True)
        return [(int(i), int(j)) for i, j in pairs if values[i, j] > 0]
    taken: list[tuple[int, int]] = []
    rows, columns = set(range(values.shape[0])), set(range(values.shape[1]))
    for place in np.argsort(-values, axis=None, kind="stable"):
        i, j = map(int, np.unravel_index(place, values.shape))
        if i in rows and j in columns and values[i, j] > 0:
            taken.append((i, j))
            rows.remove(i)
            columns.remove(j)
    return taken


def clustered(boxes: Sequence[Box], right: Sequence[Box]) -> str:
    """Writes boxes as a text; nearly equal boxes mostly give the same text.

    Corners are rounded to a tenth of the mean side of the right boxes.
    """
    sides = [side for box in right for side in (box.x2 - box.x1, box.y2 - box.y1)]
    step = float(np.mean(sides)) / 10 if sides else 1.0
    written = [
        f"{_plain(box.label or '')} {[round(corner / step) for corner in box[:4]]}".strip()
        for box in boxes
    ]
    return "; ".join(sorted(written)) or "none"


def _plain(label: str) -> str:
    return " ".join(label.casefold().split())


def _box(numbers: Sequence[float], order: str, label: str | None) -> Box:
    return Box(*FORMATS[order](*numbers), label)


_Group = tuple[list[float], str | None]


def _groups(text: str, count: int, fields: Sequence[str]) -> list[_Group]:
    """Reads groups of numbers from a text, with the labels that JSON may have."""
    if len(text) > _MOST_CHARACTERS:
        raise UnreadableBoxesError(
            f"it has {len(text):,} characters, more than {_MOST_CHARACTERS:,}"
        )
    for part in _json_parts(text):
        try:
            value = json.loads(_TRAILING_COMMA.sub("", part))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list | dict):
            return list(_walk(value, count, fields))
    numbers = _SEPARATOR.join([rf"({_NUMBER})"] * count)
    groups = re.findall(rf"[\[(]\s*{numbers}\s*[\])]", text)
    if not groups and count == 4:
        groups = _CORNERS.findall(text)
    if not groups:
        groups = re.findall(rf"(?:^|>)\s*{numbers}\s*[.]?\s*(?:$|</)", text)
    if not groups:
        raise UnreadableBoxesError(f"it has no group of {count} numbers")
    if len(groups) > _MOST_BOXES:
        raise UnreadableBoxesError(
            f"it has {len(groups):,} groups of numbers, more than {_MOST_BOXES}"
        )
    return [(_finite(group), None) for group in groups]


def _json_parts(text: str) -> Iterator[str]:
    """Yields the parts of a text that may be JSON.

    These are the last code block, the whole text, and the text from the first bracket to the last.
    """
    if blocks := _FENCE.findall(text):
        yield blocks[-1]
    yield text
    start = min((at for at in (text.find("["), text.find("{")) if at >= 0), default=-1)
    end = max(text.rfind("]"), text.rfind("}"))
    if 0 <= start < end:
        yield text[start : end + 1]


def _walk(
    value: object, count: int, fields: Sequence[str], label: str | None = None, depth: int = 0
) -> Iterator[_Group]:
    """Yields the groups of numbers in a value, at any depth."""
    if depth > _DEEPEST:
        raise UnreadableBoxesError("it is nested too deeply")
    if isinstance(value, Mapping):
        name = value.get("label")
        inner = next((value[field] for field in fields if field in value), None)
        if inner is None:
            raise UnreadableBoxesError(
                f"{reprlib.repr(dict(value))} has none of {', '.join(fields)}"
            )
        yield from _walk(inner, count, fields, name if isinstance(name, str) else label, depth + 1)
    elif not isinstance(value, list | tuple):
        raise UnreadableBoxesError(f"{reprlib.repr(value)} is not a list of {count} numbers")
    elif value and all(type(one) in (int, float) for one in value):
        if len(value) != count:
            raise UnreadableBoxesError(
                f"{reprlib.repr(value)} has {len(value)} numbers, not {count}"
            )
        yield _finite(value), label
    elif len(value) > _MOST_BOXES:
        raise UnreadableBoxesError(f"it lists {len(value):,} boxes, more than {_MOST_BOXES}")
    else:
        for one in value:
            yield from _walk(one, count, fields, label, depth + 1)


def _finite(values: Sequence[Any]) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except OverflowError:  # An integer of hundreds of digits.
        numbers = [math.inf]
    if not all(abs(number) < _MOST_COORDINATE for number in numbers):
        raise UnreadableBoxesError(f"{reprlib.repr(list(values))} are not coordinates")
    return numbers
