"""The calls that a reward server answers, as records, and the records of its answers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl_sync.expression import parse_sum
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.references import is_reference
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.rubric import ScoringRequest


@record
class RewardIdentity(NamedTuple):
    """A reward in a form that two machines can compare.

    Attributes:
      reward: the expression.
      files: digests of the files that the expression names, by file name.
    """

    reward: str
    files: Mapping[str, str]

    def difference(self, other: RewardIdentity) -> str | None:
        """Describes how another reward differs, for the user; None if it is the same."""
        if parse_sum(self.reward) != parse_sum(other.reward):
            return f"its reward is {other.reward!r}, and not {self.reward!r}"
        for name, mine in self.files.items():
            if other.files.get(name) != mine:
                return f"its {name} is another file"
        return None


def identity_of(reward: str) -> RewardIdentity:
    """Returns the identity of an expression; see `rl_sync.expression`."""
    names = [term.name.rpartition(":")[0] for term in parse_sum(reward) if is_reference(term.name)]
    paths = [Path(name).expanduser() for name in names if name.endswith(".py")]
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return RewardIdentity(reward, files)


@record
class ServerDescription(NamedTuple):
    """A server's description of itself.

    Attributes:
      identity: reward that it serves.
      workers: number of completions that it judges at once.
    """

    identity: RewardIdentity
    workers: int


@dataclasses.dataclass(frozen=True)
class AskServerDescription(Call[ServerDescription]):
    """Asks a server for its reward."""


@dataclasses.dataclass(frozen=True)
class SubmitCompletions(Call[list[Judgement]]):
    """Asks a server to judge completions; the answer is their judgements, in their order.

    The call may take long; see `rl_sync.cluster.pending`. A server judges the completions of a key
    once, even if they are sent again, and returns their judgements each time.

    Attributes:
      reward: expression of the reward to judge them by.
    """

    reward: str
    items: list[ScoringRequest]
