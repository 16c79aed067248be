"""The calls that a reward server answers: a record each, and what they are answered with."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.cluster.rpc import Call
from rl_sync.isolation.codec import record
from rl_sync.rewards.code_identity import RewardIdentity
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.rubric import ScoringRequest

record(RewardIdentity)


@record
class ServerDescription(NamedTuple):
    """A server's answer about itself.

    Attributes:
      identity: the reward that it serves.
      workers: the number of completions that it judges at once.
    """

    identity: RewardIdentity
    workers: int


@dataclasses.dataclass(frozen=True)
class AskServerDescription(Call[ServerDescription]):
    """Asks a server for its reward."""


@dataclasses.dataclass(frozen=True)
class SubmitCompletions(Call[list[Judgement]]):
    """Hands in completions to be judged; answered with their judgements, in their order.

    It may take long; see `rl_sync.cluster.pending`. A server judges the completions of a key
    once, however often they come, and gives their judgements any number of times.

    Attributes:
      reward: the expression that they are to be judged by.
    """

    reward: str
    items: list[ScoringRequest]
