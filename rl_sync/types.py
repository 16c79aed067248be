"""The records that pass between roles: prompts, leases, groups, train batches.

Letters in shapes: G trajectories of a group, B rows of a batch, T token positions.
"""

from __future__ import annotations

import dataclasses
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
      text: what the policy is asked.
      answer: what the reward model compares with.
    """

    prompt_id: int
    text: str
    answer: str


class Lease(NamedTuple):
    """The right, and the duty, of one explorer to turn one prompt into one group.

    Attributes:
      lease_id: unique in a run; a prompt that is leased again gets a new one.
      ordinal: the prompt's place in the run's seeded order of prompts, from 0. It stays the same
        when the prompt is leased again.
      attempt: what else the draws depend on: under latest pulls 0 for the first lease of an
        ordinal, 1 for the second, and so on; under exact pulls always 0.
      prompt: the problem.
    """

    lease_id: int
    ordinal: int
    attempt: int
    prompt: Prompt


@dataclasses.dataclass(frozen=True)
class Group:
    """A prompt's trajectories: what an explorer writes as one item of the replay buffer.

    Rows hold the prompt, then the completion, then padding (id 0). Arrays that speak of a token
    stand at that token's own position, so `behavior_logprobs[g, t]` belongs to `tokens[g, t]`.

    Attributes:
      lease_id, ordinal, prompt_id: see `Lease`; `NO_LEASE` in demonstrations.
      explorer: which explorer generated it.
      tokens: prompt and completion.
      completion_mask: true at the completion's tokens, its end-of-sequence token included.
      behavior_logprobs: log-probability under the distribution that was really sampled from;
        0 where the mask is false.
      policy_versions: the version of the weights that produced each token; -1 where the mask is
        false.
      rewards: one a trajectory.
      baselines: for each trajectory the reward of the prompt's greedy completion; None where none
        was generated.
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
        """The version of the oldest token: what staleness is counted from."""
        return int(self.policy_versions[self.completion_mask].min())

    def to_columns(self) -> dict[str, np.ndarray]:
        """Returns the group as the named columns of a replay item; integers become int32 [].

        What is None has no column.
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


class Packing(NamedTuple):
    """Where trajectories lie in rows that hold several.

    Attributes:
      positions: each token's place in its trajectory; 0 at padding.
      trajectories: which trajectory of the batch each token belongs to; -1 at padding.
    """

    positions: Int[Array, "B T"]
    trajectories: Int[Array, "B T"]


class Demonstrations(NamedTuple):
    """What is to be imitated, D rows.

    Attributes:
      tokens: prompt and answer.
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
      demonstrations: what is imitated beside them, if anything is.
    """

    rows: Rows
    rewards: Float[Array, " trajectories"]
    baselines: Float[Array, " trajectories"] | None = None
    demonstrations: Demonstrations | None = None
