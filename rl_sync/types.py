"""The records that pass between roles: prompts, leases, groups, train batches.

Letters in shapes: G trajectories of a group, B rows of a batch, T token positions,
C tokens of a row that are learned, E entries of a row's sampling masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from rl_sync.ending import Ending
from rl_sync.isolation.codec import record

NO_LEASE = -1
"""In place of a lease id, and of a prompt id, in groups that nobody has generated."""

Params = Any
"""A pytree of arrays: the parameters of a model."""


class Prompt(NamedTuple):
    """One problem of a task.

    Attributes:
      prompt_id: the row in the task's training problems.
      text: the question to the policy.
      answer: the text that rewards compare completions with; empty if there is none.
      row: other fields of the row of data that it was made from; rewards and environments get them.
    """

    prompt_id: int
    text: str
    answer: str
    row: Mapping[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """All fields as rewards and environments get them: `prompt` and `answer` as asked."""
        return {**(self.row or {}), "prompt": self.text, "answer": self.answer}


class Preference(NamedTuple):
    """A pair of completions of a problem, of which one was preferred.

    Attributes:
      prompt: the problem, as in the task's problems.
      chosen, rejected: the completions.
      margin: by how much the chosen one's score is to be the higher one, at least; 0 for any.
    """

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0


class Lease(NamedTuple):
    """Assignment of one prompt to one explorer, which must turn it into one group.

    Attributes:
      lease_id: an id that is unique in a run; a prompt that is leased again gets a new one.
      ordinal: the prompt's index in the run's seeded order of prompts, from 0. It stays the same
        when the prompt is leased again.
      attempt: a number that random draws depend on, beside the ordinal. Under latest pulls it is 0
        for the first lease of an ordinal, 1 for the second, and so on. Under exact pulls it is
        always 0.
      prompt: the problem, without its row: explorers find that in their own task.
    """

    lease_id: int
    ordinal: int
    attempt: int
    prompt: Prompt


class Use(NamedTuple):
    """A group of a prompt that was judged.

    Attributes:
      step: the trainer step that it was for, or after which it ended.
      ordinal, replacement: see `rl_sync.roles.master.events.Assignment`.
      prompt: the id of the prompt.
      success: the group's success, as `curriculum.success` measures it.
    """

    step: int
    ordinal: int
    replacement: int
    prompt: int
    success: float


class Seen(NamedTuple):
    """The history of one prompt, as it is kept in snapshots.

    Attributes:
      prompt: its id.
      uses: the number of its groups that were judged.
      success: its success rate; the newest groups count most.
      last_step: the trainer step of its last use.
    """

    prompt: int
    uses: int
    success: float
    last_step: int


@dataclasses.dataclass(frozen=True)
class Group:
    """A prompt's trajectories; an explorer writes them as one item of the replay buffer.

    Rows hold the prompt, then the completion, then padding (id 0) up to the longest row of the
    group. The row of an episode of several turns holds its prompt, then replies of the policy and
    turns of the environment. Arrays with a value for each token are aligned with the tokens:
    `behavior_logprobs[g, t]` belongs to `tokens[g, t]`.

    Attributes:
      lease_id, ordinal, prompt_id: see `Lease`; `NO_LEASE` in demonstrations.
      explorer: the number of the explorer that generated it.
      tokens: token ids of prompt and completion.
      completion_mask: true at the tokens that the policy drew, the end-of-sequence token included;
        false at all tokens of a completion that could not be judged.
      behavior_logprobs: the log-probability of each token under the distribution that it was
        sampled from; 0 where none was sampled. Without `rollout.keep_sampling_mask` it is that of
        the whole vocabulary.
      policy_versions: the version of the weights that produced each token; -1 where none did.
      rewards: the reward of each trajectory; see `rl_sync.roles.explorer.actor.rewarded` for those
        that could not be judged.
      baselines: for each trajectory the reward of the prompt's greedy completion; None if there is
        no greedy completion.
      turn_rewards: in episodes, the reward of a turn at the last token of the policy's reply before
        it, 0 elsewhere; `rewards` have them already. None without episodes.
      segments: in episodes, the number of the segment of each token, from 0, and -1 at padding: a
        row holds the segments of its episode one after the other, and none attends to another. None
        where each row is one segment.
      truncated: whether each episode was cut by a limit; None without episodes.
      sampling_masks: the tokens that each drawn token could be drawn from, as entries (see
        `rl_sync.sampling_masks`); None where all were drawn from the whole vocabulary.
      endings: the ends of the episodes. They are no column of a replay item, since only those that
        judge need them.
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
    sampling_masks: UInt32[np.ndarray, "G E 3"] | None = None
    endings: tuple[Ending, ...] | None = dataclasses.field(default=None, metadata={"column": False})

    @property
    def oldest_version(self) -> int:
        """The version of the oldest token; staleness is counted from it."""
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


@record
class SharedPrompts(NamedTuple):
    """Prompts of rows in which completions of one prompt share one copy of it.

    The tokens that are learned are listed, at most C a row, since the token before one is not
    always its neighbor: the first token of each completion follows the last one of the prompt.

    Attributes:
      copies: a number for each copy of a prompt: at its tokens, and at those of the completions
        that share it; -1 at padding.
      learned: positions in the row of the tokens under the completion mask; T where there are no
        more.
      before: positions in the row of the tokens before them; 0 where there are no more.
    """

    copies: Int[Array, "B T"]
    learned: Int[Array, "B C"]
    before: Int[Array, "B C"]


@record
class Packing(NamedTuple):
    """Positions of trajectories in rows that hold several of them.

    Attributes:
      positions: the position of each token in its trajectory; 0 at padding.
      trajectories: the index in the batch of the trajectory that each token belongs to; -1 at
        padding, and at a prompt that trajectories share.
      prompts: None where each trajectory has a prompt of its own.
      segments: for trajectories of several segments, the number of the one that each token belongs
        to, unlike that of any other in its row, and its position is the one in its segment; -1 at
        padding. None where a trajectory is one segment.
    """

    positions: Int[Array, "B T"]
    trajectories: Int[Array, "B T"]
    prompts: SharedPrompts | None = None
    segments: Int[Array, "B T"] | None = None

    @property
    def attending(self) -> Int[Array, "B T"]:
        """A number for each token; tokens attend to those of the same number alone."""
        return self.trajectories if self.segments is None else self.segments


@record
class Demonstrations(NamedTuple):
    """Demonstrations, D rows.

    Attributes:
      tokens: token ids of prompt and answer.
      mask: true at the answer's tokens, its end-of-sequence token included.
      packing: None where each row is one demonstration.
    """

    tokens: Int[Array, "D T"]
    mask: Bool[Array, "D T"]
    packing: Packing | None = None


@record
class Rows(NamedTuple):
    """Trajectories, laid out in B rows of T tokens.

    Attributes: as in `Group`, and
      packing: None where row i is trajectory i, and one segment.
    """

    tokens: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    policy_versions: Int[Array, "B T"]
    packing: Packing | None = None
    turn_rewards: Float[Array, "B T"] | None = None
    sampling_masks: UInt32[Array, "B E 3"] | None = None

    @property
    def sequences(self) -> Int[Array, "B T"] | None:
        """The trajectory of each token; None where row i is trajectory i."""
        return None if self.packing is None else self.packing.trajectories


@record
class TrainBatch(NamedTuple):
    """The batch of one trainer step: the trajectories of whole groups, group after group.

    Attributes:
      rows: their tokens.
      rewards: one a trajectory.
      baselines: likewise, or None.
      demonstrations: those that are learned beside them, if there are any.
      truncated: whether each was cut by a limit of its episode; None without episodes.
    """

    rows: Rows
    rewards: Float[Array, " trajectories"]
    baselines: Float[Array, " trajectories"] | None = None
    demonstrations: Demonstrations | None = None
    truncated: Bool[Array, " trajectories"] | None = None
