"""Records of rollouts: the completions that a run trained on, with all known facts.

A run writes them to `workdir/rollouts/`: one line with a JSON object per completion, in parts such
as `step-00000001.jsonl`, named by their first trainer step. A part has whole steps, in order.
Records of a step that is repeated after a crash are removed, so each step appears once.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import regex

from rl_sync.records.json_lines import JsonLinesReader, JsonObject, warn_of_broken
from rl_sync.records.rollouts.record_parts import RecordPart, parts_in, removed_parts
from rl_sync.workdir import Workdir

POLICY, ENVIRONMENT = "policy", "environment"
"""Who wrote a turn of an episode."""

_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A completion, or an episode, that a trainer step trained on.

    Attributes:
      step: the trainer step, from 1.
      lease, ordinal, prompt_id, explorer: ids of its group; see `rl_sync.types.Group`. A lease is
        one group.
      sample: its number in the group, from 0.
      prompt: the prompt as the policy saw it, special tokens included. The tokens of an image are
        written as ⟨image 1: 28x28⟩.
      images: images of the prompt, of a policy that sees; see `ImageFiles.store`.
      expected: the problem's answer, which rewards compare with; empty if there is none.
      completion: the completion as it was judged: without the end of sequence; for an episode,
        the last reply.
      turns: for an episode, everything after the prompt: `by` (`policy` or `environment`),
        `text`, and `segment`, which counts rewritten conversations. None without an environment.
      reward: its reward; None if it could not be judged.
      components: parts of the reward by name.
      why: the reason of the judgement.
      answer: the answer that was read from the completion; None if the reward reads none.
      baseline: the reward of the prompt's greedy completion, if there is one.
      advantage: the mean of its tokens' advantages; None if the loss has none.
      staleness: staleness of its oldest token, in trainer steps.
      truncated: whether it was cut by a limit.
      episode: for an episode: its `reason`, `why`, `turns`, `rewards` and `metrics`; in a game of
        several players also `seat`, the player who learns, and all `moves`: `player`, `by`, `text`.
      prompt_ids: token ids of the prompt.
      ids: token ids of everything after the prompt.
      tokens: their texts.
      logprobs: their log-probabilities under the sampling distribution, in nats, rounded to four
        digits; None for tokens of the environment.
      versions: policy versions of `ids`, as runs [version, tokens]; -1 for tokens of the
        environment.
      mask: runs [1 or 0, tokens] of `ids`: 1 for tokens that the loss learns from.
      ratios: π / π_behavior of each token, π being the policy before the update that learned from
        it; rounded to four digits; None for tokens that the loss does not learn from. Empty if
        unknown.
      entropies: entropy of π's distribution at each token, in nats; empty in the same cases.
      token_advantages: advantage of each token; empty in the same cases, and if all tokens have
        `advantage`.
    """

    step: int
    lease: int
    ordinal: int = 0
    prompt_id: int = 0
    explorer: int = 0
    sample: int = 0
    prompt: str = ""
    images: list[JsonObject] = dataclasses.field(default_factory=list)
    expected: str = ""
    completion: str = ""
    turns: list[JsonObject] | None = None
    reward: float | None = None
    components: dict[str, float] = dataclasses.field(default_factory=dict)
    why: str = ""
    answer: str | None = None
    baseline: float | None = None
    advantage: float | None = None
    staleness: int = 0
    truncated: bool = False
    episode: JsonObject | None = None
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    ids: list[int] = dataclasses.field(default_factory=list)
    tokens: list[str] = dataclasses.field(default_factory=list)
    logprobs: list[float | None] = dataclasses.field(default_factory=list)
    versions: list[list[int]] = dataclasses.field(default_factory=list)
    mask: list[list[int]] = dataclasses.field(default_factory=list)
    ratios: list[float | None] = dataclasses.field(default_factory=list)
    entropies: list[float | None] = dataclasses.field(default_factory=list)
    token_advantages: list[float | None] = dataclasses.field(default_factory=list)

    @property
    def drawn_tokens(self) -> int:
        """The number of tokens that the policy sampled."""
        return sum(count for version, count in self.versions if version >= 0)

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of the policy's tokens, in nats; None if unknown."""
        known = [value for value in self.logprobs if value is not None]
        return statistics.fmean(known) if known else None

    @property
    def said(self) -> str:
        """The whole text after the prompt."""
        if self.turns is None:
            return self.completion
        return "".join(turn["text"] for turn in self.turns)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Rollout:
        """Makes a record from the object of a line; unknown fields are left out.

        Raises:
          TypeError: a field is missing.
        """
        return cls(**{name: record[name] for name in record.keys() & cls.__dataclass_fields__})


ORDERS: Mapping[str, str] = {
    "step": "step",
    "reward": "reward",
    "advantage": "advantage",
    "tokens": "drawn_tokens",
    "staleness": "staleness",
    "logprob": "mean_logprob",
}
"""Sort keys of records, by the name of the order."""

Recorded = TypeVar("Recorded")


def ordered(found: Iterable[Recorded], order: str) -> list[Recorded]:
    """Sorts records, or rows with their figures; the sort is stable.

    Records without the sort key come last.

    Args:
      order: a key of `ORDERS`, with a leading - to sort in descending order.
    """
    name, sign = ORDERS[order.removeprefix("-")], -1 if order.startswith("-") else 1

    def rank(one: Recorded) -> tuple[bool, float]:
        value = getattr(one, name)
        return value is None, sign * (value or 0.0)

    return sorted(found, key=rank)


SEARCH_SECS = 2.0
"""Maximum seconds of the search for a pattern in one text."""


class RolloutFilter(NamedTuple):
    """Conditions on records; None and empty stand for any.

    Attributes:
      first_step, last_step: bounds of the trainer step.
      prompt_id, lease: see `Rollout`.
      least, greatest: bounds of the reward; they exclude completions that could not be judged.
      pattern: a pattern to find in the prompt or in the text after it.
    """

    first_step: int = 0
    last_step: int | None = None
    prompt_id: int | None = None
    lease: int | None = None
    least: float | None = None
    greatest: float | None = None
    pattern: regex.Pattern[str] | None = None

    def holds(self, one: Rollout) -> bool:
        """Says whether a record fulfils all conditions; raises what `finds` raises."""
        return self.fits(one) and self.finds(one)

    def fits(self, one: Any) -> bool:
        """Says whether the figures of a record, or of a table row, fulfil the conditions."""
        if one.step < self.first_step or (self.last_step is not None and one.step > self.last_step):
            return False
        if self.prompt_id not in (None, one.prompt_id) or self.lease not in (None, one.lease):
            return False
        if self.least is not None and (one.reward is None or one.reward < self.least):
            return False
        return self.greatest is None or (one.reward is not None and one.reward <= self.greatest)

    def finds(self, one: Rollout) -> bool:
        """Says whether the pattern occurs in a record.

        Raises:
          TimeoutError: the pattern takes longer than `SEARCH_SECS` on a text.
        """
        return self.pattern is None or any(
            self.pattern.search(text, timeout=SEARCH_SECS) for text in (one.prompt, one.said)
        )


def parts(workdir: str | os.PathLike[str]) -> list[RecordPart]:
    """Lists the parts of a run's records, by their first trainer steps; empty without records."""
    return parts_in(Workdir(workdir).rollouts)


def describe_removed(workdir: str | os.PathLike[str]) -> str:
    """Says which steps' records have gone as they were too large; empty if none have."""
    at = Workdir(workdir)
    removed = removed_parts(at.removed(at.rollouts))
    if not removed:
        return ""
    first, last = min(one.first for one in removed), max(one.last for one in removed)
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return (
        f"The completions of {steps} are no longer there, as observe.completions_mib bounds these"
        f" records; {at.metrics.name} has the figures of these steps."
    )


def read_rollouts(
    workdir: str | os.PathLike[str], selection: RolloutFilter | None = None
) -> Iterator[Rollout]:
    """Reads the records of a run in the order written, also while the run writes more.

    If a part is cut or deleted meanwhile, its readable records are returned. Whoever tells of
    records that have gone asks `describe_removed` afterwards.

    Args:
      selection: the conditions on records; parts with only other steps are not opened.
    """
    wanted = selection or RolloutFilter()
    found = parts(workdir)
    for part, after in itertools.zip_longest(found, found[1:]):
        if after is not None and after.number <= wanted.first_step:
            continue
        if wanted.last_step is not None and part.number > wanted.last_step:
            return
        yield from filter(wanted.holds, _read(part.path))


def groups_of(rollouts: Iterable[Rollout]) -> dict[tuple[int, int], list[Rollout]]:
    """Gathers records by group, as (step, lease), in the order of each group's first record."""
    groups: dict[tuple[int, int], list[Rollout]] = {}
    for one in rollouts:
        groups.setdefault((one.step, one.lease), []).append(one)
    return groups


class Digest(NamedTuple):
    """Figures of some records, such as the records of a step or a group.

    Attributes:
      rollouts, groups: number of records and of groups.
      reward_mean, reward_least, reward_greatest: rewards of judged completions; None if none was
        judged.
      tokens_mean: mean number of sampled tokens.
      truncated: share of completions that were cut.
      unjudged: number of completions that could not be judged.
      staleness: maximum staleness, in trainer steps.
    """

    rollouts: int
    groups: int
    reward_mean: float | None
    reward_least: float | None
    reward_greatest: float | None
    tokens_mean: float
    truncated: float
    unjudged: int
    staleness: int


def digest(rollouts: Sequence[Rollout]) -> Digest:
    """Returns the digest of at least one record."""
    rewards = [one.reward for one in rollouts if one.reward is not None]
    return Digest(
        rollouts=len(rollouts),
        groups=len({(one.step, one.lease) for one in rollouts}),
        reward_mean=sum(rewards) / len(rewards) if rewards else None,
        reward_least=min(rewards, default=None),
        reward_greatest=max(rewards, default=None),
        tokens_mean=sum(one.drawn_tokens for one in rollouts) / len(rollouts),
        truncated=sum(one.truncated for one in rollouts) / len(rollouts),
        unjudged=len(rollouts) - len(rewards),
        staleness=max(one.staleness for one in rollouts),
    )


def _read(path: Path) -> Iterator[Rollout]:
    """Reads the whole lines of a part; broken lines are skipped, with a warning."""
    reader, broken = JsonLinesReader(path), list[tuple[int, str]]()
    while (news := reader.read(_BLOCK_BYTES)).size:
        broken += news.broken
        for line in news.lines:
            try:
                yield Rollout.from_json(line.record)
            except TypeError as error:
                broken.append((line.number, str(error)))
    warn_of_broken(path, broken)
