"""The calls that a reward server answers, as records, and the records of its answers."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.rewards.code_identity import RewardIdentity
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.rubric import ScoringRequest

record(RewardIdentity)


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
