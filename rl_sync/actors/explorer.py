"""The explorer as a functional actor: from leases and weights of a known version to groups."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.models.config import ModelConfig
from rl_sync.rollout.decode import generate
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.task import Task
from rl_sync.types import Group, Lease, Params


class ExplorerState(NamedTuple):
    """The weights that an explorer generates with, and their version."""

    version: int
    params: Params


@dataclasses.dataclass(frozen=True)
class Explorer:
    """What an explorer knows of the run; its one step is pure.

    Attributes:
      number: which explorer, from 1.
      model: the policy's shape.
      task: the problems.
      sampling: how completions are drawn.
      group_size: completions a prompt, G.
      groups: how many groups a rollout has room for. Fewer leases are filled up with copies whose
        completions are thrown away, so that every rollout has one shape.
      seed: the run's.
    """

    number: int
    model: ModelConfig
    task: Task
    sampling: Sampling
    group_size: int
    groups: int
    seed: int

    def rollout(self, state: ExplorerState, leases: list[Lease]) -> list[Group]:
        """Generates a group for each lease; rewards are still 0.

        What is drawn depends on the weights, the prompt, and (seed, ordinal, attempt, row) alone.

        Raises:
          ValueError: more leases than there is room for.
        """
        if not 0 < len(leases) <= self.groups:
            raise ValueError(f"A rollout takes 1 to {self.groups} leases, not {len(leases)}.")
        padded = [*leases, *leases[:1] * (self.groups - len(leases))]
        tokens, lengths = self.task.encode_prompts([lease.prompt.text for lease in padded])
        completions = generate(
            self.model,
            state.params,
            jnp.asarray(tokens.repeat(self.group_size, axis=0)),
            jnp.asarray(lengths.repeat(self.group_size)),
            self._keys(padded),
            self.sampling,
        )
        arrays = jax.tree.map(self._by_group, completions)
        return [
            Group(
                lease_id=lease.lease_id,
                ordinal=lease.ordinal,
                prompt_id=lease.prompt.prompt_id,
                explorer=self.number,
                tokens=arrays.tokens[i],
                completion_mask=arrays.completion_mask[i],
                behavior_logprobs=arrays.behavior_logprobs[i],
                policy_versions=np.where(arrays.completion_mask[i], state.version, -1).astype(
                    np.int32
                ),
                rewards=np.zeros(self.group_size, np.float32),
            )
            for i, lease in enumerate(leases)
        ]

    def compile(self, params: Params) -> None:
        """Compiles the rollout, by doing one that is thrown away."""
        prompt = self.task.train[0]
        self.rollout(ExplorerState(0, params), [Lease(0, 0, 0, prompt)])

    def _by_group(self, rows: jax.Array) -> np.ndarray:
        return np.asarray(rows).reshape(self.groups, self.group_size, *rows.shape[1:])

    def _keys(self, leases: list[Lease]) -> jax.Array:
        identities = np.array([[lease.ordinal, lease.attempt] for lease in leases], np.uint32)
        return _row_keys(jax.random.key(self.seed), jnp.asarray(identities.T), self.group_size)


@functools.partial(jax.jit, static_argnums=2)
def _row_keys(key: jax.Array, identities: jax.Array, group_size: int) -> jax.Array:
    """One key a row, folded with (ordinal, attempt) of its lease and its place in the group."""

    def of_lease(ordinal: jax.Array, attempt: jax.Array) -> jax.Array:
        leased = jax.random.fold_in(jax.random.fold_in(key, ordinal), attempt)
        return jax.random.split(leased, group_size)

    return jax.vmap(of_lease)(*identities).reshape(-1)
