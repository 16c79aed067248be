"""Rewards for boxes and points in images."""

from __future__ import annotations

import contextlib
import dataclasses
import reprlib
from collections.abc import Sequence

import numpy as np

from rl_sync.images import Size, check_images, images_of
from rl_sync.rewards.answers.extraction import extract, strategies_of
from rl_sync.rewards.images.boxes import (
    FORMATS,
    SCALES,
    Box,
    UnreadableBoxesError,
    boxes_of,
    clustered,
    iou,
    matched,
    read_boxes,
    read_points,
    scaled,
)
from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.spelling import require_one_of

SIZE_FIELD = "image_size"
"""The field with [width, height] of the image, for rows without the image itself."""

EXTRACT = "boxed,tags,hashes,answer_block,whole"
_MATCHINGS = ("hungarian", "greedy")
_WHICH = ("all", "any")
_ROUNDING = 1e-6
_MOST = {"unit": 1.0, "thousand": 1000.0}
_BEYOND = 1.5  # Boxes may reach over the edge of an image, but not by half of it.
OFF_SCALE = "off_scale"
"""Component of answers with coordinates: 1 if these are of another scale than `answer_scale`."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """The right boxes of a row and their coordinates: the options that box and point rewards share.

    Judgements have the component `off_scale`: 1 if the coordinates of the answer are all at most 1
    although `answer_scale` is not `unit`, or one is beyond 1.5 times the scale or the image.

    Attributes:
      field: the row's field with the right boxes: [x1, y1, x2, y2], a list of these, or of
        {"box": […], "label": "…"}.
      order: order of a box's four numbers in the row: xyxy, xywh, cxcywh or yxyx.
      scale: coordinates of the row: `pixels`, `unit` (0 to 1) or `thousand` (0 to 1000).
      answer_scale: coordinates of answers; empty if they are the row's. If they differ, the row
        needs its image in `images`, or `image_size`, [width, height].
      extract: strategies that find the answer in the completion; see
        `rl_sync.rewards.answers.extraction`.

    Raises:
      ValueError: an unknown order, scale or strategy.
    """

    field: str = "boxes"
    order: str = "xyxy"
    scale: str = "pixels"
    answer_scale: str = ""
    extract: str = EXTRACT

    def __post_init__(self) -> None:
        require_one_of("order", self.order, FORMATS)
        require_one_of("scale", self.scale, SCALES)
        if self.answer_scale:
            require_one_of("answer_scale", self.answer_scale, SCALES)
        strategies_of(self.extract)

    def check(self, row: Row) -> None:
        """Refuses a row without right boxes, or whose image cannot be read.

        Raises:
          ValueError: the row is refused; the message names the field, the value and the way out.
        """
        check_images(row)
        self._right(row)
        size = _given_size(row) if self.scale == "pixels" else None
        if size and _are_beyond(boxes_of(row[self.field], self.order), size):
            raise ValueError(
                f"row[{self.field!r}]={reprlib.repr(row[self.field])} is far outside of the image,"
                f" which has {size.width} × {size.height} pixels: use scale='thousand'? (Its order"
                f" is {self.order}.)"
            )

    def _right(self, row: Row) -> list[Box]:
        """Returns the right boxes, in pixels if answers have another scale.

        Raises:
          ValueError: the row lacks them, or they are malformed.
        """
        if self.field not in row:
            raise ValueError(
                f"row[{self.field!r}] is missing: it must hold the right boxes (option `field`)."
            )
        try:
            boxes = boxes_of(row[self.field], self.order)
        except UnreadableBoxesError as error:
            raise ValueError(
                f"row[{self.field!r}]: {error}. It must be a box of four numbers, or a list of"
                " them."
            ) from error
        most = _MOST.get(self.scale)
        if boxes and _are_of_unit(boxes, self.scale):
            raise ValueError(
                f"row[{self.field!r}] has no coordinate above 1, and scale={self.scale}: use"
                " scale='unit'?"
            )
        for box in boxes:
            corners = box[:4]
            if most and not all(-_ROUNDING <= x <= most + _ROUNDING for x in corners):
                raise ValueError(
                    f"row[{self.field!r}] has the corners {list(corners)}, and scale={self.scale}"
                    f" goes from 0 to {most:g}: use scale='pixels'?"
                )
        return scaled(boxes, self.scale, self._size(row))

    def _size(self, row: Row) -> Size | None:
        """Returns the image's size; None if nothing has to be converted."""
        if self.answer_scale in ("", self.scale):
            return None
        if (size := _given_size(row)) is None:
            raise ValueError(
                f"answer_scale={self.answer_scale} and scale={self.scale} can only be converted"
                f" with the image: row['images'] or row[{SIZE_FIELD!r}] must be there."
            )
        return size

    def _why_off_scale(self, row: Row, given: Sequence[Box], right: Sequence[Box]) -> str:
        """Says why an answer's coordinates are of another scale than `answer_scale`.

        Args:
          given: boxes of the answer, in its own coordinates.

        Returns:
          A reason that names the option; empty if they may be of that scale.
        """
        scale = self.answer_scale or self.scale
        if not given or not right:
            return ""
        if _are_of_unit(given, scale):
            return f"; no coordinate is above 1: answer_scale={scale} may be wrong"
        most = _MOST.get(scale)
        size: tuple[float, float] | None = (most, most) if most else None
        if scale == "pixels":
            with contextlib.suppress(ValueError):  # The image may be on another machine.
                size = _given_size(row)
        if size and _are_beyond(given, size):
            return (
                f"; they are far beyond {size[0]:g} × {size[1]:g}: answer_scale={scale} or"
                f" order={self.order} may be wrong"
            )
        return ""

    def _found(self, completion: Completion) -> str:
        """Returns the part of a completion that is the answer.

        Raises:
          UnreadableBoxesError: there is no answer.
        """
        found = extract(completion.text, strategies_of(self.extract), completion.truncated)
        if found is None:
            cut = ", and it was truncated" if completion.truncated else ""
            raise UnreadableBoxesError(f"no answer found by {self.extract}{cut}")
        return found.text


@dataclasses.dataclass(frozen=True)
class BoxOverlap(Truth):
    """Compares the boxes of a completion with the row's: their overlap, from 0 to 1.

    Boxes are matched so that each is used at most once. The value of a pair is its intersection
    over union; with a threshold, it is 1 if the intersection over union reaches the threshold, and
    0 if not. The score is the sum of the pairs' values, divided by the number of right boxes or of
    given boxes, whichever is larger: a missing box costs as much as an extra one.

    Attributes:
      threshold: the least intersection over union of a hit, such as 0.5; 0 for graded scores.
      matching: `hungarian` for the greatest sum of overlaps, `greedy` for the greatest first.

    Raises:
      ValueError: a threshold outside 0 to 1, or an unknown matching.
    """

    threshold: float = 0.0
    matching: str = "hungarian"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("matching", self.matching, _MATCHINGS)
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r} must be from 0 (graded) to 1.")

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        try:
            right, size = self._right(row), self._size(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        try:
            given = read_boxes(self._found(completion), self.order)
        except UnreadableBoxesError as error:
            return Judgement(0.0, f"no boxes: {error}")
        why_off = self._why_off_scale(row, given, right)
        turned = sum(not box.area for box in given)
        given = scaled(given, self.answer_scale, size)
        vote = clustered(given, right)
        if not right and not given:
            return Judgement(1.0, "no boxes, as it should be", answer=vote)
        overlaps = np.array([[iou(a, b) for b in given] for a in right]).reshape(
            len(right), len(given)
        )
        pairs = matched(overlaps, self.matching)
        values = [overlaps[pair] for pair in pairs]
        if self.threshold:
            values = [float(value >= self.threshold - 1e-9) for value in values]
        return Judgement(
            float(sum(values)) / max(len(right), len(given)),
            f"{len(given)} boxes for {len(right)}, overlaps"
            f" {', '.join(f'{overlaps[pair]:.2f}' for pair in pairs[:8]) or 'none'}"
            + f"; {turned} without area: order={self.order} may be wrong" * bool(turned)
            + why_off,
            {OFF_SCALE: float(bool(why_off))},
            answer=vote,
        )


@dataclasses.dataclass(frozen=True)
class PointInBox(Truth):
    """Scores the share of the row's boxes that a completion points into, from 0 to 1.

    Each point counts for one box at most. The score is the number of boxes with a point,
    divided by the number of boxes or of points, whichever is larger.

    Attributes:
      boxes: `all` needs a point in each box; `any` needs one point, in any box.

    Raises:
      ValueError: an unknown choice.
    """

    boxes: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("boxes", self.boxes, _WHICH)

    def check(self, row: Row) -> None:
        """Refuses the rows that `Truth` refuses, and rows without a box to point into."""
        super().check(row)
        if not self._right(row):
            raise ValueError(f"row[{self.field!r}] is empty: it must have a box to point into.")

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        try:
            self.check(row)
            right, size = self._right(row), self._size(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        try:
            points = read_points(self._found(completion))
        except UnreadableBoxesError as error:
            return Judgement(0.0, f"no point: {error}")
        # A point is a box of no size, as far as scaling is concerned.
        given = [Box(x, y, x, y) for x, y in points]
        why_off = self._why_off_scale(row, given, right)
        given = scaled(given, self.answer_scale, size)
        inside = np.array([[float(box.holds(p.x1, p.y1)) for p in given] for box in right])
        hits = len(matched(inside.reshape(len(right), len(given)), "hungarian"))
        wanted = 1 if self.boxes == "any" else len(right)
        return Judgement(
            min(hits, wanted) / max(wanted, len(given)),
            f"{len(given)} points, {hits} of {len(right)} boxes have one" + why_off,
            {OFF_SCALE: float(bool(why_off))},
            answer="; ".join(sorted(_place(point, right) for point in given)),
        )


def _given_size(row: Row) -> Size | None:
    """Returns the size of a row's image; None if the row has neither size nor image.

    Raises:
      ValueError: the size is malformed, or the image cannot be read.
    """
    given = row.get(SIZE_FIELD)
    if given is not None:
        numbers = list(given) if isinstance(given, list | tuple) else []
        if len(numbers) != 2 or not all(type(n) is int and n > 0 for n in numbers):
            raise ValueError(f"row[{SIZE_FIELD!r}]={given!r} must be [width, height].")
        return Size(*numbers)
    images = images_of(row)
    return images[0].size() if images else None


def _are_of_unit(boxes: Sequence[Box], scale: str) -> bool:
    """Says whether boxes of another scale have the coordinates of the scale `unit`."""
    return scale != "unit" and all(abs(x) <= 1 for box in boxes for x in box[:4])


def _are_beyond(boxes: Sequence[Box], size: tuple[float, float]) -> bool:
    """Says whether a corner is far outside of an area that begins at 0."""
    return any(
        max(box.x1, box.x2) > _BEYOND * size[0] or max(box.y1, box.y2) > _BEYOND * size[1]
        for box in boxes
    )


def _place(point: Box, right: Sequence[Box]) -> str:
    """Names the boxes that a point is in, or writes its rounded coordinates if it is in none."""
    inside = [i for i, box in enumerate(right) if box.holds(point.x1, point.y1)]
    return f"in {inside}" if inside else clustered([point], right)
