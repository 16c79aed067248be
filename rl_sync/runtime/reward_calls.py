"""The calls that a reward server answers: a record each, and what they are answered with."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.ending import Ending, Fault, Move
from rl_sync.processes.messages import record
from rl_sync.processes.rpc import Call
from rl_sync.rewards.identity import RewardIdentity
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.rubric import Judgeable

for _class in (Completion, Ending, Fault, Judgeable, Judgement, Move, RewardIdentity):
    record(_class)


@record
class Offer(NamedTuple):
    """A server's answer about itself.

    Attributes:
      identity: the reward that it serves.
      workers: the number of completions that it judges at once.
    """

    identity: RewardIdentity
    workers: int


@dataclasses.dataclass(frozen=True)
class AskRewardOffer(Call[Offer]):
    """Asks a server for its reward."""


@dataclasses.dataclass(frozen=True)
class HandIn(Call[list[Judgement]]):
    """Hands in completions to be judged; answered with their judgements, in their order.

    It may take long; see `rl_sync.processes.pending`. A server judges the completions of a key
    once, however often they come, and gives their judgements any number of times.

    Attributes:
      reward: the expression that they are to be judged by.
    """

    reward: str
    items: list[Judgeable]
