"""The reward that an environment gave."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Completion, Judgement, Row


@dataclasses.dataclass(frozen=True)
class EnvironmentReward:
    """Sums the rewards that the environment of an episode gave, or takes one of them.

    An episode whose environment failed is not judged. A truncated episode keeps the rewards of its
    turns so far.

    Attributes:
      name: the name of the reward to take, which is 0 in episodes that ended before it was given;
        None takes the sum of all.
    """

    name: str | None = None

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges an episode; its components are the rewards by name."""
        del row
        ending = completion.ending
        if ending is None:
            return Judgement.unknown("there was no episode: set environment.name")
        why = f"{ending.reason}: {ending.why}" if ending.why else ending.reason
        if ending.failed:
            return Judgement.unknown(why)
        if ending.reason == "done" and not ending.rewards and ending.why:
            return Judgement.unknown(ending.why)
        if self.name is None:
            return Judgement(sum(ending.rewards.values()), why, ending.rewards)
        if self.name not in ending.rewards and ending.reason == "done" and ending.rewards:
            given = ", ".join(ending.rewards)
            return Judgement.unknown(f"the environment gave no reward {self.name!r}, but {given}")
        return Judgement(ending.rewards.get(self.name, 0.0), why)
