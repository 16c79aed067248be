"""A reward for each set of a mixture of tasks."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.rewards.reward_catalog import SET

ACCURACY = "accuracy"
"""The component that says whether the problem is solved: the first term of the set's reward that
applies."""


class RewardBySet:
    """Judges each completion by the reward of its row's `task_set`: `by_set(sums='exact', …)`.

    Args:
      rewards: the expression of each set's reward.

    Raises:
      ValueError: no reward is given, or an expression is malformed.
    """

    def __init__(self, **rewards: str) -> None:
        from rl_sync.rewards.rubric import Rubric  # Imported late: it makes this reward.

        if not rewards:
            raise ValueError("by_set needs a reward for each set, as in by_set(sums='exact').")
        self._rubrics = {name: Rubric(reward) for name, reward in rewards.items()}

    def __call__(self, rows: Sequence[Row], completions: Sequence[Completion]) -> list[Judgement]:
        """Judges completions, set by set."""
        from rl_sync.rewards.rubric import ScoringRequest

        places = collections.defaultdict[str, list[int]](list)
        for place, row in enumerate(rows):
            places[str(row.get(SET))].append(place)
        judged: dict[int, Judgement] = {}
        for name, of in places.items():
            if (rubric := self._rubrics.get(name)) is None:
                judged |= dict.fromkeys(of, Judgement.unknown(f"by_set has no reward for {name}"))
                continue
            found = rubric.judge([ScoringRequest(rows[i], completions[i]) for i in of])
            terms = rubric.labels
            judged |= {i: _named(name, terms, one) for i, one in zip(of, found, strict=True)}
        return [judged[i] for i in range(len(rows))]

    def check(self, row: Row) -> None:
        """Checks a row with the reward of its set.

        Raises:
          ValueError: there is no reward for the set, or it cannot judge the row.
        """
        name = str(row.get(SET))
        if name not in self._rubrics:
            has = ", ".join(self._rubrics)
            raise ValueError(f"by_set has no reward for the set {name!r}: it has {has}.")
        self._rubrics[name].check([row])

    def warm_up(self) -> None:
        """Prepares the rewards of all sets."""
        for rubric in self._rubrics.values():
            rubric.warm_up()


def _named(name: str, terms: Sequence[str], one: Judgement) -> Judgement:
    components = {f"{name}/{part}": value for part, value in one.components.items()}
    if applying := [term for term in terms if term in one.components]:
        components[ACCURACY] = one.components[applying[0]]
    return Judgement(one.score, one.why, components, one.answer)
