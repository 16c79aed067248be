"""The explorer as an actor: from leases and weights of a known version to groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import Completion, Request
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.task import Task
from rl_sync.types import Group, Lease, Params


class ExplorerState(NamedTuple):
    """The weights that an explorer generates with, and their version."""

    version: int
    params: Params


Newer = Callable[[ExplorerState], ExplorerState | None]
"""From the weights in use to newer ones, if there are any."""


@dataclasses.dataclass(frozen=True)
class Explorer:
    """What an explorer knows of the run.

    Attributes:
      number: which explorer, from 1.
      engine: what generates; nothing is left in it between two rollouts.
      task: the problems.
      sampling: how completions are drawn.
      group_size: completions a prompt, G.
      groups: the most groups of a rollout.
      seed: the run's.
    """

    number: int
    engine: Engine
    task: Task
    sampling: Sampling
    group_size: int
    groups: int
    seed: int

    def rollout(
        self, state: ExplorerState, leases: list[Lease], newer: Newer | None = None
    ) -> tuple[ExplorerState, list[Group]]:
        """Generates a group for each lease; rewards are still 0.

        What is drawn depends on the weights, the prompt, and (seed, ordinal, attempt, row) alone.

        Args:
          newer: asked for newer weights again and again, with those that are in use; completions
            that have begun go on with them.

        Returns:
          The weights that were in use at the end, and the groups.

        Raises:
          ValueError: more leases than there is room for.
        """

        def swap() -> None:
            nonlocal state
            if newer is not None and (found := newer(state)) is not None:
                state = found
                self.engine.load(state.params, state.version)

        self.engine.load(state.params, state.version)
        groups = self._groups(leases, self.sampling, swap)
        return state, groups

    def compile(self, params: Params) -> None:
        """Compiles what a full rollout begins with, by doing one that is thrown away."""
        prompts = self.task.train[: self.groups]
        few = min(self.sampling.max_new_tokens, self.engine.chunk_tokens)
        sampling = dataclasses.replace(self.sampling, max_new_tokens=few, min_new_tokens=0)
        leases = [Lease(0, ordinal, 0, prompt) for ordinal, prompt in enumerate(prompts)]
        self.engine.load(params, version=0)
        self._groups(leases, sampling, between=None)

    def _groups(
        self, leases: list[Lease], sampling: Sampling, between: Callable[[], None] | None
    ) -> list[Group]:
        if not 0 < len(leases) <= self.groups:
            raise ValueError(f"A rollout takes 1 to {self.groups} leases, not {len(leases)}.")
        tokens, lengths = self.task.encode_prompts([lease.prompt.text for lease in leases])
        prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        requests = [
            Request(prompt, sampling, self.group_size, (self.seed, lease.ordinal, lease.attempt))
            for prompt, lease in zip(prompts, leases, strict=True)
        ]
        generated = self.engine.generate(requests, between)
        return [
            self._group(lease, prompt, completions)
            for lease, prompt, completions in zip(leases, prompts, generated, strict=True)
        ]

    def _group(self, lease: Lease, prompt: np.ndarray, completions: Sequence[Completion]) -> Group:
        shape = (self.group_size, self.task.row_tokens)
        tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
        logprobs, versions = np.zeros(shape, np.float32), np.full(shape, -1, np.int32)
        tokens[:, : len(prompt)] = prompt
        for row, completion in enumerate(completions):
            here = slice(len(prompt), len(prompt) + len(completion.tokens))
            tokens[row, here], mask[row, here] = completion.tokens, True
            logprobs[row, here], versions[row, here] = completion.logprobs, completion.versions
        return Group(
            lease_id=lease.lease_id,
            ordinal=lease.ordinal,
            prompt_id=lease.prompt.prompt_id,
            explorer=self.number,
            tokens=tokens,
            completion_mask=mask,
            behavior_logprobs=logprobs,
            policy_versions=versions,
            rewards=np.zeros(self.group_size, np.float32),
        )
