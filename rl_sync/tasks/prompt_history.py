"""Keeps the history of a run's prompts: number of uses, success rate, and last use of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rl_sync.types import PromptPast, Use


@dataclasses.dataclass(frozen=True, eq=False)
class PromptHistory:
    """The history of prompts by id; prompts beyond the arrays were never used.

    Each attribute has one value for each prompt; see `PromptPast`.
    """

    uses: Int[np.ndarray, " P"] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    success: Float[np.ndarray, " P"] = dataclasses.field(default_factory=lambda: np.zeros(0))
    last_step: Int[np.ndarray, " P"] = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.int64)
    )

    def of(self, count: int) -> PromptHistory:
        """Returns the history of the first `count` prompts, in arrays of this length."""
        if len(self.uses) == count:
            return self
        arrays = (self.uses, self.success, self.last_step)
        return PromptHistory(*(np.resize(np.append(x[:count], np.zeros(count, x.dtype)), count)
                         for x in arrays))  # fmt: skip

    def after(self, uses: Iterable[Use], newest_weight: float) -> PromptHistory:
        """Returns the history after further uses, in order.

        Args:
          newest_weight: weight of a use in the success rate; all earlier uses together have the
            rest of the weight.
        """
        uses = list(uses)
        if not uses:
            return self
        count = max(len(self.uses), 1 + max(use.prompt for use in uses))
        grown = self.of(count)
        times, success, last = (x.copy() for x in (grown.uses, grown.success, grown.last_step))
        for use in uses:
            weight = newest_weight if times[use.prompt] else 1.0
            success[use.prompt] += weight * (use.success - success[use.prompt])
            times[use.prompt] += 1
            last[use.prompt] = max(last[use.prompt], use.step)
        return PromptHistory(times, success, last)

    def seen(self) -> list[PromptPast]:
        """Lists the prompts that were used."""
        return [
            PromptPast(int(i), int(self.uses[i]), float(self.success[i]), int(self.last_step[i]))
            for i in np.flatnonzero(self.uses)
        ]

    @classmethod
    def of_seen(cls, seen: Sequence[PromptPast]) -> PromptHistory:
        """Inverts `seen`."""
        count = max((one.prompt + 1 for one in seen), default=0)
        made = cls().of(count)
        for one in seen:
            made.uses[one.prompt], made.success[one.prompt] = one.uses, one.success
            made.last_step[one.prompt] = one.last_step
        return made
