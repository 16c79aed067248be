"""The master's calls that score completions, and their results."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.ending import Ending, Fault, Move
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call

for _class in (Ending, Fault, Move):
    record(_class)


@record
class CompletionToScore(NamedTuple):
    """A completion to score.

    Attributes:
      prompt_id: its problem, among the training problems or the held-out ones.
      held_out: whether the problem is held out.
      lease_id: lease id of its group; `NO_LEASE` in evaluations.
      tokens: token ids, including the end of sequence.
      truncated: whether a limit ended the completion.
      sample: index among the completions of a held-out problem, from 0.
      ending: end of its episode, whose last reply is `tokens`; None without an environment.
      begun: what the prompt has already written of the reply, such as `<think>`.
    """

    prompt_id: int
    held_out: bool
    lease_id: int
    text: str
    tokens: list[int]
    truncated: bool
    sample: int = 0
    ending: Ending | None = None
    begun: str = ""


@record
class ScoredCompletion(NamedTuple):
    """The master's score of a completion.

    Attributes:
      score: its reward; None if it could not be scored.
      solved: whether the first term of the reward is 1 or more.
      parts: score by each part of the reward, in the order of `rl_sync.rewards.reward_parts`, and
        NaN by those that give none; empty for a reward of one part.
    """

    score: float | None
    solved: bool
    parts: tuple[float, ...] = ()


@record
class Judgements(NamedTuple):
    """Scores of groups, in columns with one entry for each completion, group after group.

    Attributes:
      counts: number of completions of each group, or 0 if its scores are no longer known. A group's
        completions are in the order in which they were written, with a greedy one last.
      scores: rewards; None for completions that could not be scored.
      whys, components, answers: see `rl_sync.rewards.judgement.Judgement`.
      endings: ends of their episodes; None without an environment.
    """

    counts: list[int]
    scores: list[float | None]
    whys: list[str]
    components: list[dict[str, float]]
    answers: list[str | None]
    endings: list[Ending | None]


@record
class Scores(NamedTuple):
    """The master's answer to a request for scores.

    Attributes:
      verdicts: one score for each completion, in order.
      admitted: lease ids of the groups to insert into the buffer; the others are dropped.
    """

    verdicts: list[ScoredCompletion]
    admitted: list[int]


@dataclasses.dataclass(frozen=True)
class RequestScores(Call[Scores]):
    """Submits completions for scoring; completions of one group follow each other.

    It may take long; see `rl_sync.cluster.pending`.
    """

    items: list[CompletionToScore]
