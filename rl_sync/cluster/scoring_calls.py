"""The master's calls that have completions judged, and what they are answered with."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.cluster.rpc import Call
from rl_sync.ending import Ending, Fault, Move
from rl_sync.isolation.codec import record

for _class in (Ending, Fault, Move):
    record(_class)


@record
class CompletionToScore(NamedTuple):
    """A completion that is to be judged.

    Attributes:
      prompt_id: its problem, among the training or the held-out ones.
      held_out: which of them.
      lease_id: of its group; `NO_LEASE` in evaluations.
      tokens: its token ids, the end of sequence included.
      truncated: whether it ends because it has the largest number of tokens.
      sample: its number among the completions of a held-out problem, from 0.
      ending: the end of its episode, whose last reply is `text`; None without an environment.
    """

    prompt_id: int
    held_out: bool
    lease_id: int
    text: str
    tokens: list[int]
    truncated: bool
    sample: int = 0
    ending: Ending | None = None


@record
class ScoredCompletion(NamedTuple):
    """The master's answer about a completion.

    Attributes:
      score: its reward; None if it could not be judged.
      solved: whether the first term of the reward gives it 1 or more.
    """

    score: float | None
    solved: bool


@record
class Judgements(NamedTuple):
    """Judgements of groups, in columns with an entry a completion, group after group.

    Attributes:
      counts: the number of completions of each group, in the order in which they were written, a
        greedy one last; 0 for a group whose judgements are not known any more.
      scores: None for those that could not be judged.
      whys, components, answers: see `rl_sync.rewards.judgement.Judgement`.
      endings: the ends of their episodes; None without an environment.
    """

    counts: list[int]
    scores: list[float | None]
    whys: list[str]
    components: list[dict[str, float]]
    answers: list[str | None]
    endings: list[Ending | None]


@record
class Scores(NamedTuple):
    """The master's answer about completions.

    Attributes:
      verdicts: one for each, in their order.
      admitted: the lease ids of the groups that are to be inserted; the others are dropped.
    """

    verdicts: list[ScoredCompletion]
    admitted: list[int]


@dataclasses.dataclass(frozen=True)
class RequestScores(Call[Scores]):
    """Hands in completions to be judged, those of a group one after the other.

    It may take long; see `rl_sync.cluster.pending`.
    """

    items: list[CompletionToScore]
