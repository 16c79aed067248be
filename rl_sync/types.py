"""The records that pass between roles: prompts, leases, groups, train batches.

Letters in shapes: G trajectories of a group, B rows of a batch, T token positions,
C tokens of a row that are learned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

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
      row: other fields of the row of data that it was made from; rewards get them.
    """

    prompt_id: int
    text: str
    answer: str
    row: Mapping[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the row as rewards get them: `prompt` and `answer` are those asked."""
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
      prompt: the problem.
    """

    lease_id: int
    ordinal: int
    attempt: int
    prompt: Prompt


@dataclasses.dataclass(frozen=True)
class Group:
    """A prompt's trajectories; an explorer writes them as one item of the replay buffer.

    Rows hold the prompt, then the completion, then padding (id 0). Arrays with a value for each
    token are aligned with the tokens: `behavior_logprobs[g, t]` belongs to `tokens[g, t]`.

    Attributes:
      lease_id, ordinal, prompt_id: see `Lease`; `NO_LEASE` in demonstrations.
      explorer: the number of the explorer that generated it.
      tokens: token ids of prompt and completion.
      completion_mask: true at the completion's tokens, its end-of-sequence token included; false
        at all tokens of a completion that could not be judged.
      behavior_logprobs: the log-probability of each token under the distribution that it was
        sampled from; 0 where none was sampled.
      policy_versions: the version of the weights that produced each token; -1 where none did.
      rewards: the reward of each trajectory; see `rl_sync.actors.explorer.rewarded` for those that
        could not be judged.
      baselines: for each trajectory the reward of the prompt's greedy completion; None if there is
        no greedy completion.
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
            if value is not None:
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


class Packing(NamedTuple):
    """Positions of trajectories in rows that hold several of them.

    Attributes:
      positions: the position of each token in its trajectory; 0 at padding.
      trajectories: the index in the batch of the trajectory that each token belongs to; -1 at
        padding, and at a prompt that trajectories share.
      prompts: None where each trajectory has a prompt of its own.
    """

    positions: Int[Array, "B T"]
    trajectories: Int[Array, "B T"]
    prompts: SharedPrompts | None = None


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


class Rows(NamedTuple):
    """Trajectories, laid out in B rows of T tokens.

    Attributes: as in `Group`, and
      packing: None where row i is trajectory i.
    """

    tokens: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    policy_versions: Int[Array, "B T"]
    packing: Packing | None = None

    @property
    def sequences(self) -> Int[Array, "B T"] | None:
        """The trajectory of each token; None where row i is trajectory i."""
        return None if self.packing is None else self.packing.trajectories


class TrainBatch(NamedTuple):
    """The batch of one trainer step: the trajectories of whole groups, group after group.

    Attributes:
      rows: their tokens.
      rewards: one a trajectory.
      baselines: likewise, or None.
      demonstrations: those that are learned beside them, if there are any.
    """

    rows: Rows
    rewards: Float[Array, " trajectories"]
    baselines: Float[Array, " trajectories"] | None = None
    demonstrations: Demonstrations | None = None
