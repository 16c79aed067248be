"""Records that pass between roles: prompts, leases, groups, train batches.

Letters in shapes: G trajectories of a group, B rows of a batch, T token positions, C trained tokens
of a row, E entries of a row's sampling masks, K parts of a reward, L layers, N tiles of images, S
side of a tile in pixels, M tokens of a tile, W width of a token's features. In routes, C is the
experts of a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int, UInt, UInt8, UInt32

from rl_sync.ending import Ending
from rl_sync.isolation.codec import record
from rl_sync.row_answers import answer_for_rewards
from rl_sync.sampling_masks import Entries
from rl_sync.token_records import SamplerRecord, joined

if TYPE_CHECKING:  # It would import JAX.
    import jax
    from jaxtyping import Array

record(SamplerRecord)

NO_LEASE = -1
"""Lease id and prompt id of groups that no explorer generated."""

Finish = Literal["stop", "length"]
"""End of a completion: at a stop token or stop string, or at the token limit."""

Params = Any
"""A pytree of arrays: the parameters of a model."""


def as_input(array: np.ndarray | jax.ShapeDtypeStruct) -> Array:
    """Declares an array of the host, or an abstract one, as the input of a compiled function.

    Nothing is computed or copied: a function takes either in the place of an array of its devices.
    """
    return cast("Array", array)


class Prompt(NamedTuple):
    """One problem of a task.

    Attributes:
      prompt_id: row index in the task's training problems.
      text: the question that the policy is asked.
      answer: text of the reference answer that rewards compare completions with; empty if there is
        none.
      row: other fields of its data row, for rewards and environments.
    """

    prompt_id: int
    text: str
    answer: str
    row: Mapping[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """All fields that rewards and environments get, with the prompt and the answer."""
        row = self.row or {}
        return {**row, "prompt": self.text, "answer": answer_for_rewards(row, self.answer)}


class Preference(NamedTuple):
    """A pair of completions of one problem, of which one was preferred.

    Attributes:
      prompt: the problem, as in the task's problems.
      chosen, rejected: the preferred completion and the other one.
      margin: minimum difference of their scores that is asked for; 0 for any.
    """

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0


@record
class ReplyMark(NamedTuple):
    """Place of a reply in the tokens of an episode.

    Attributes:
      start: number of tokens of the replies before it.
      turn: digest of the turn that it answers; see
        `rl_sync.rollout.episodes.episode_records.Continue`.
      opponent: player who gives it, if that is an opponent; None for the policy that learns.
      finish: reason of its end; None while it is in flight.
    """

    start: int
    turn: bytes
    opponent: int | None
    finish: Finish | None


_MARK_BYTES = 64
"""About the memory of a mark."""


@record
class CompletionProgress(NamedTuple):
    """Tokens of a completion so far, or of all replies of an episode, one after the other.

    Attributes:
      tokens: sampled tokens.
      logprobs, versions: log-probability of each token when it was sampled, in nats, and the
        version of the weights that sampled it.
      masks: set of tokens that each token could be sampled from; see `rl_sync.sampling_masks`.
      finish: reason of its end, as in `FinishedCompletion`; None while it is in flight, and for an
        episode.
      sampler: distribution of each token; None if it is not recorded.
      replies: replies of an episode, of the policy and of opponents that it plays; none for a
        completion.
      attempt: number of the attempt to play an episode, from 0.
    """

    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]
    masks: Entries
    finish: Finish | None = None
    sampler: SamplerRecord | None = None
    replies: tuple[ReplyMark, ...] = ()
    attempt: int = 0

    def follows(self, earlier: CompletionProgress) -> bool:
        """Says whether it begins with earlier tokens: of the same attempt, after the same turns."""
        turns, before = ([mark.turn for mark in one.replies] for one in (self, earlier))
        return (
            self.attempt == earlier.attempt
            and len(self.tokens) >= len(earlier.tokens)
            and turns[: len(before)] == before
        )

    def after(self, start: int) -> CompletionProgress:
        """Returns the tokens from a position on; the positions of masks and replies stay.

        A reply that ends at the position is among the replies, since its end may be new.
        """
        ends = [*(one.start for one in self.replies[1:]), len(self.tokens)]
        return self._replace(
            replies=tuple(
                one for one, end in zip(self.replies, ends, strict=False) if end >= start
            ),
            tokens=self.tokens[start:],
            logprobs=self.logprobs[start:],
            versions=self.versions[start:],
            masks=self.masks[self.masks[:, 0] >= start],
            sampler=None if self.sampler is None else self.sampler.after(start),
        )

    def joined(self, later: CompletionProgress) -> CompletionProgress:
        """Inverts `after`, for a later part of the same completion."""
        first = later.replies[0].start if later.replies else len(self.tokens)
        return CompletionProgress(
            np.concatenate([self.tokens, later.tokens]),
            np.concatenate([self.logprobs, later.logprobs]),
            np.concatenate([self.versions, later.versions]),
            np.concatenate([self.masks, later.masks]),
            later.finish,
            joined([one for one in (self.sampler, later.sampler) if one is not None]),
            (*(one for one in self.replies if one.start < first), *later.replies),
            later.attempt,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, and about those of its replies."""
        arrays = self.tokens, self.logprobs, self.versions, self.masks, *(self.sampler or ())
        return sum(array.nbytes for array in arrays) + _MARK_BYTES * len(self.replies)


class Lease(NamedTuple):
    """Assignment of one prompt to one explorer, which must turn it into one group.

    Attributes:
      lease_id: id that is unique in a run; a prompt that is leased again gets a new one.
      ordinal: the prompt's index in the run's seeded order of prompts, from 0. It stays the same
        when the prompt is leased again.
      attempt: a number that seeds the sampling together with the ordinal. Under latest pulls it is
        0 for the first lease of an ordinal, 1 for the second, and so on. Under exact pulls it is
        always 0.
      prompt: the problem without its row; explorers find the row in their own task.
      begun: completions or episodes that another explorer has begun, or that this one began before
        it was started again, each with its row in the group; they go on.
    """

    lease_id: int
    ordinal: int
    attempt: int
    prompt: Prompt
    begun: tuple[tuple[int, CompletionProgress], ...] = ()


class ChosenPrompt(NamedTuple):
    """A prompt that was chosen.

    Attributes:
      prompt: id of the prompt.
      why: under `difficulty_band`, the prompt's relation to the band when it was chosen.
    """

    prompt: int
    why: str = ""


class Use(NamedTuple):
    """A use of a prompt: one of its groups was scored.

    Attributes:
      step: trainer step that the group was for, or after which it ended.
      ordinal, replacement: see `rl_sync.messages.events.Assignment`.
      prompt: id of the prompt.
      success: success of the group, as `curriculum.success` measures it.
    """

    step: int
    ordinal: int
    replacement: int
    prompt: int
    success: float


class PromptPast(NamedTuple):
    """History of one prompt, as snapshots store it.

    Attributes:
      prompt: id of the prompt.
      uses: number of its groups that were scored.
      success: success rate, in which the newest groups count most.
      last_step: trainer step of its last use.
    """

    prompt: int
    uses: int
    success: float
    last_step: int


@dataclasses.dataclass(frozen=True)
class Group:
    """A prompt's trajectories; an explorer writes them as one item of the replay buffer.

    Rows hold the prompt, then the completion, then padding (id 0) up to the longest row of the
    group. The row of a multi-turn episode holds its prompt, then alternating replies of the policy
    and turns of the environment. Per-token arrays are aligned with the tokens:
    `behavior_logprobs[g, t]` belongs to `tokens[g, t]`.

    Attributes:
      lease_id, ordinal, prompt_id: see `Lease`; `NO_LEASE` in demonstrations.
      explorer: number of the explorer that generated the group.
      tokens: token ids of prompt and completion.
      completion_mask: true at the tokens that the policy sampled, including the end-of-sequence
        token; false at all tokens of a completion that could not be scored.
      behavior_logprobs: log-probability of each token under the distribution that it was sampled
        from; 0 for tokens that were not sampled. Without `rollout.keep_sampling_mask`, the
        distribution is the one over the whole vocabulary.
      policy_versions: version of the weights that sampled each token; -1 for tokens that were not
        sampled.
      rewards: reward of each trajectory; see `rl_sync.roles.explorer.actor.rewarded` for
        trajectories that could not be scored.
      baselines: for each trajectory the reward of the prompt's greedy completion; None if there is
        no greedy completion.
      turn_rewards: in episodes, the reward of each turn, placed at the last token of the policy's
        reply before the turn; 0 elsewhere. `rewards` already include them. None without episodes.
      segments: in episodes, the segment number of each token, from 0, and -1 at padding. A row
        holds the segments of its episode one after the other, and tokens attend only within their
        segment. None where each row is one segment.
      truncated: whether a limit cut each trajectory; None in demonstrations and pairs.
      parts: score of each trajectory by each part of the reward; None if the reward has one part.
      sampling_masks: set of tokens that each token could be sampled from, as entries (see
        `rl_sync.sampling_masks`); None where it was always the whole vocabulary.
      routes: experts that each token went to in the explorer (see `rl_sync.token_records`); None
        without `rollout.routing_replay`.
      sampler_logprobs: log-probabilities of the distribution that each token was sampled from, as
        the explorer recorded it (see `rl_sync.token_records`); None without
        `algorithm.score_centering`.
      sampler_ids: the likeliest tokens, to which these log-probabilities belong; None for the
        whole vocabulary.
      image_at: for each token the index of its features, M · tile + offset; -1 at text. None if the
        group has no images, as the two others.
      tiles: the group's images, cut into tiles, each once: their pixels, or their features
        [N, M, W] from a frozen vision tower, whichever is smaller.
      tile_digests: 16 bytes that identify each tile.
      seats: in games of several players, the player who learned in each trajectory; 0 where a game
        did not begin. None otherwise.
      endings: ends of the episodes. They are not a column of a replay item, since only scoring
        needs them.
      served_logprobs: log-probabilities by a served teacher: of each token (K = 1), or of its best
        tokens there. They are not a column of a replay item, since the trainer asks for them.
      served_ids: these best tokens; None if the log-probabilities belong to the tokens themselves.
    """

    lease_id: int
    ordinal: int
    prompt_id: int
    explorer: int
    tokens: Int[np.ndarray, "G T"]
    completion_mask: Bool[np.ndarray, "G T"]
    behavior_logprobs: Float[np.ndarray, "G T"]
    policy_versions: Int[np.ndarray, "G T"]
    rewards: Float[np.ndarray, " G"]
    baselines: Float[np.ndarray, " G"] | None = None
    turn_rewards: Float[np.ndarray, "G T"] | None = None
    segments: Int[np.ndarray, "G T"] | None = None
    truncated: Bool[np.ndarray, " G"] | None = None
    parts: Float[np.ndarray, "G K"] | None = None
    sampling_masks: UInt32[np.ndarray, "G E 3"] | None = None
    routes: UInt[np.ndarray, "G T L C"] | None = None
    sampler_logprobs: Float[np.ndarray, "G T outcomes"] | None = None
    sampler_ids: Int[np.ndarray, "G T best"] | None = None
    image_at: Int[np.ndarray, "G T"] | None = None
    tiles: UInt8[np.ndarray, "N S S 3"] | Float[np.ndarray, "N M W"] | None = None
    tile_digests: UInt8[np.ndarray, "N 16"] | None = None
    seats: Int[np.ndarray, " G"] | None = None
    endings: tuple[Ending, ...] | None = dataclasses.field(default=None, metadata={"column": False})
    served_logprobs: Float[np.ndarray, "G T K"] | None = dataclasses.field(
        default=None, metadata={"column": False}
    )
    served_ids: Int[np.ndarray, "G T K"] | None = dataclasses.field(
        default=None, metadata={"column": False}
    )

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token; staleness is counted from it."""
        return int(self.policy_versions[self.policy_versions >= 0].min())

    def to_columns(self) -> dict[str, np.ndarray]:
        """Returns the group as the named columns of a replay item; integers become int32 [].

        A field that is None has no column.
        """
        columns = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.metadata.get("column", True):
                is_number = isinstance(value, int)
                columns[field.name] = np.asarray(value, np.int32) if is_number else value
        return columns

    @classmethod
    def from_columns(cls, columns: dict[str, np.ndarray]) -> Group:
        """Inverts `to_columns`.

        Raises:
          KeyError: a column is missing.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.default is None and field.name not in columns:
                continue
            column = columns[field.name]
            values[field.name] = int(column) if column.ndim == 0 else column
        return cls(**values)


class Consumed(NamedTuple):
    """Groups that a trainer step takes from the buffer.

    Attributes:
      groups: groups to train on, in the batch's order; none in a process that does not read.
      left_out: lease ids of groups that are not selected, if more are generated than needed.
      kept: lease ids of groups that a later step may train on again.
      notes: metrics of the user's functions.
    """

    groups: list[Group]
    left_out: list[int]
    kept: Sequence[int] = ()
    notes: Mapping[str, float] = MappingProxyType({})


@record
class SharedPrompts(NamedTuple):
    """Layout of rows in which several completions of a prompt share one copy of it.

    The trained tokens are listed, at most C a row, since a token does not always follow its
    predecessor in the row: the first token of each completion follows the last one of the prompt.

    Attributes:
      copies: number of the prompt's copy that each token belongs to: its own tokens, and the
        completions that share it; -1 at padding.
      learned: positions in the row of the tokens under the completion mask, padded with T.
      before: positions in the row of the predecessors of the tokens in `learned`, padded with 0.
    """

    copies: Int[Array, "B T"]
    learned: Int[Array, "B C"]
    before: Int[Array, "B C"]


@record
class Packing(NamedTuple):
    """Layout of rows that hold several trajectories.

    Attributes:
      positions: position of each token in its trajectory; 0 at padding.
      trajectories: index in the batch of the trajectory that each token belongs to; -1 at padding,
        and at a prompt that trajectories share.
      prompts: layout of shared prompts; None where each trajectory has its own prompt.
      segments: for trajectories of several segments, the segment number of each token, which is
        unique in its row; positions then count in the segment. -1 at padding. None where each
        trajectory is one segment.
    """

    positions: Int[Array, "B T"]
    trajectories: Int[Array, "B T"]
    prompts: SharedPrompts | None = None
    segments: Int[Array, "B T"] | None = None

    @property
    def attending(self) -> Int[Array, "B T"]:
        """Attention group of each token: tokens attend only to tokens with the same number."""
        return self.trajectories if self.segments is None else self.segments


@record
class RowImages(NamedTuple):
    """Images of rows that are computed in parts of equally many rows, one after the other.

    Attributes:
      tiles: pixels, or features of a frozen tower; each part of the rows has an equal share of
        them, one share after the other.
      at: for each token the index of its features, M · tile + offset, within its part's share; -1
        at text.
    """

    tiles: UInt8[Array, "N S S 3"] | Float[Array, "N M W"]
    at: Int[Array, "B T"]


@record
class Demonstrations(NamedTuple):
    """Demonstrations, D rows.

    Attributes:
      tokens: token ids of prompt and answer.
      mask: true at the answer's tokens, including its end-of-sequence token.
      packing: layout of packed rows; None where each row is one demonstration.
      images: images of the prompts; None for text alone.
    """

    tokens: Int[Array, "D T"]
    mask: Bool[Array, "D T"]
    packing: Packing | None = None
    images: RowImages | None = None


@record
class Rows(NamedTuple):
    """Trajectories, laid out in B rows of T tokens.

    Attributes: as in `Group`, and
      packing: layout of packed rows; None where row i is trajectory i and one segment.
      images: images of the rows; None for text alone.
      teachers: index of each token's teacher, if there are several.
    """

    tokens: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    policy_versions: Int[Array, "B T"]
    packing: Packing | None = None
    turn_rewards: Float[Array, "B T"] | None = None
    sampling_masks: UInt32[Array, "B E 3"] | None = None
    routes: UInt[Array, "B T L C"] | None = None
    sampler_logprobs: Float[Array, "B T outcomes"] | None = None
    sampler_ids: Int[Array, "B T best"] | None = None
    images: RowImages | None = None
    teachers: Int[Array, "B T"] | None = None
    served_logprobs: Float[Array, "B T K"] | None = None
    served_ids: Int[Array, "B T K"] | None = None

    @property
    def sequences(self) -> Int[Array, "B T"] | None:
        """Trajectory index of each token; None where row i is trajectory i."""
        return None if self.packing is None else self.packing.trajectories


@record
class TrainBatch(NamedTuple):
    """The batch of one trainer step: trajectories of whole groups, one group after the other.

    Attributes:
      rows: tokens of the trajectories.
      rewards: reward of each trajectory.
      baselines: baseline of each trajectory, or None.
      demonstrations: demonstrations to train on in the same step, if any.
      truncated: whether a limit cut each trajectory; None where its tokens say it, as completions
        that were not cut end with a stop id.
      parts: score of each trajectory by each part of the reward; None if it has one part.
      roles: number of each trajectory's role: its seat in a game, in its set of a mixture; None if
        advantages do not compare roles.
    """

    rows: Rows
    rewards: Float[Array, " trajectories"]
    baselines: Float[Array, " trajectories"] | None = None
    demonstrations: Demonstrations | None = None
    truncated: Bool[Array, " trajectories"] | None = None
    parts: Float[Array, "trajectories K"] | None = None
    roles: Int[Array, " trajectories"] | None = None
