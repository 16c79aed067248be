"""A reward for several kinds of questions about images; each row names its kind."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rl_sync.rewards.images.grounding import BoxOverlap, PointInBox
from rl_sync.rewards.images.visual_answers import (
    Anls,
    Count,
    OptionMatch,
    RelaxedNumber,
    VqaAccuracy,
)
from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.spelling import require_one_of

KINDS: dict[str, type] = {
    "box": BoxOverlap,
    "point": PointInBox,
    "count": Count,
    "words": VqaAccuracy,
    "text": Anls,
    "number": RelaxedNumber,
    "choice": OptionMatch,
}
"""The reward of each kind of question. Options of `VisionReward` replace its defaults."""


@dataclasses.dataclass(frozen=True)
class VisionReward:
    """Judges a completion by the reward of its row's kind, from 0 to 1.

    Attributes:
      kind: the kind of rows without `row["kind"]`: box, point, count, words, text, number or
        choice; empty if all rows have it.
      order, scale, answer_scale: options of `BoxOverlap` and `PointInBox`.
      threshold: option of `BoxOverlap`.

    Raises:
      ValueError: an unknown kind, or an option that its reward refuses.
    """

    kind: str = ""
    order: str = "xyxy"
    scale: str = "pixels"
    answer_scale: str = ""
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.kind:
            require_one_of("kind", self.kind, KINDS)
        _ = self._rewards

    def check(self, row: Row) -> None:
        """Refuses a row if its kind is unknown, or if the reward of its kind refuses it.

        Raises:
          ValueError: the row is refused; the message names the field, the value and the way out.
        """
        self._rewards[self._kind(row)].check(row)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        try:
            kind = self._kind(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        return self._rewards[kind](row, completion)

    @functools.cached_property
    def _rewards(self) -> dict[str, Any]:
        where: dict[str, Any] = {
            "order": self.order, "scale": self.scale, "answer_scale": self.answer_scale
        }  # fmt: skip
        made: dict[str, Callable[..., Any]] = {name: make() for name, make in KINDS.items()}
        made["box"] = BoxOverlap(**where, threshold=self.threshold)
        made["point"] = PointInBox(**where)
        return made

    def _kind(self, row: Row) -> str:
        kind = row.get("kind", self.kind)
        require_one_of("row['kind']", kind, KINDS)
        return kind
