"""Parts of a reward: the terms of its sum, and the parts that groups are filtered by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.expression import parse_sum
from rl_sync.rewards.reward_catalog import BY_SET, REWARDS
from rl_sync.spelling import require_one_of

OUTCOME = "outcome"
"""Name of all parts that do not judge the form of a completion."""


class RewardPart(NamedTuple):
    """A term of a reward.

    Attributes:
      label: its unique name in metrics, such as `format`; `by_set/SET/format` in a mixture.
      weight: its weight in the sum.
      shapes: whether it judges the form of a completion; see `docs/rewards-shaping.md`.
    """

    label: str
    weight: float
    shapes: bool

    @property
    def name(self) -> str:
        """The label without the set of a mixture."""
        return self.label.rpartition("/")[2]


def labels_of(names: Sequence[str]) -> list[str]:
    """Makes a short name for each term; equal names are numbered."""
    short = [name.rpartition(":")[2] for name in names]
    return [
        name if short.index(name) == i else f"{name}_{short[: i + 1].count(name)}"
        for i, name in enumerate(short)
    ]


def read_parts(expression: str) -> tuple[RewardPart, ...]:
    """Reads the parts of a reward; in a mixture those of each set's reward.

    Raises:
      ValueError: the expression is not a weighted sum.
    """
    terms = parse_sum(expression)
    parts: list[RewardPart] = []
    for term, label in zip(terms, labels_of([term.name for term in terms]), strict=True):
        if term.name != BY_SET:
            kind = REWARDS.get(term.name)
            parts.append(RewardPart(label, term.weight, kind is not None and kind.shapes))
            continue
        for of_set, inner in term.options.items():
            parts += [
                RewardPart(f"{label}/{of_set}/{one.label}", term.weight * one.weight, one.shapes)
                for one in read_parts(str(inner))
            ]
    return tuple(parts)


def chosen_weights(parts: Sequence[RewardPart], names: Sequence[str]) -> tuple[float, ...]:
    """Returns the weights of the parts with these names, and 0 for the others.

    Args:
      names: names or labels of parts; `outcome` for all that do not judge the form.

    Raises:
      ValueError: no part has a name; the message names the nearest.
    """
    found = dict.fromkeys(parts, False)
    for name in names:
        if name == OUTCOME:
            of_name = [part for part in parts if not part.shapes]
        else:
            known = dict.fromkeys([*(one.name for one in parts), *(one.label for one in parts)])
            require_one_of("the part", name, [OUTCOME, *known])
            of_name = [part for part in parts if name in (part.name, part.label)]
        found |= dict.fromkeys(of_name, True)
    return tuple(part.weight if found[part] else 0.0 for part in parts)
