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
class HandIn(Call[None]):
    """Hands in completions to be judged.

    Attributes:
      key: names them; a server judges the completions of a key once, however often they come.
      reward: the expression that they are to be judged by.
    """

    key: str
    reward: str
    items: list[Judgeable]


@record
class Underway(NamedTuple):
    """Completions are still being judged.

    Attributes:
      judged: the number of completions that the server has judged so far.
    """

    judged: int


@record
class Unheard(NamedTuple):
    """No completions of that key were handed in, as after a restart of the server."""


@dataclasses.dataclass(frozen=True)
class Collect(Call[list[Judgement] | Underway | Unheard]):
    """Asks for the judgements of a key, in the order of the completions; any number of times.

    Attributes:
      poll_secs: the longest wait for them.
    """

    key: str
    poll_secs: float
