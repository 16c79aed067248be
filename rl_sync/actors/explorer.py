"""The explorer as an actor: from leases and weights of a known version to groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import Completion, Request
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.task import Task
from rl_sync.types import Group, Lease, Params

_NO_VERSION = -1  # Of weights that nothing is generated with.


class UnfinishedGroup(NamedTuple):
    """A group of which completions are still in the engine.

    Attributes:
      lease: what it is generated for.
      ticket: its request's, in the engine.
      baseline_ticket: that of its greedy completion; None without one.
      prompt: token ids.
      completions: those that have finished.
    """

    lease: Lease
    ticket: int
    baseline_ticket: int | None
    prompt: Int[np.ndarray, " P"]
    completions: tuple[Completion, ...] = ()


class ExplorerState(NamedTuple):
    """The weights that an explorer generates with, and what it has begun.

    Attributes:
      version, params: the weights.
      unfinished: the groups that the next rollout goes on with, in the order of their leases.
    """

    version: int
    params: Params
    unfinished: tuple[UnfinishedGroup, ...] = ()


Newer = Callable[[ExplorerState], ExplorerState | None]
"""From the weights in use to newer ones, if there are any."""


@dataclasses.dataclass(frozen=True)
class Explorer:
    """What an explorer knows of the run.

    Attributes:
      number: which explorer, from 1.
      engine: what generates; between two rollouts it holds what the state calls unfinished.
      task: the problems.
      sampling: how completions are drawn.
      group_size: completions a prompt, G.
      groups: the most groups that are under way at once.
      seed: the run's.
      budget_tokens: a rollout ends when so many were drawn; 0 for when nothing is left to draw.
      with_baselines: whether a greedy completion is generated beside each group. It is the last row
        of the group until that is judged (`rewarded`).
    """

    number: int
    engine: Engine
    task: Task
    sampling: Sampling
    group_size: int
    groups: int
    seed: int
    budget_tokens: int = 0
    with_baselines: bool = False

    def rollout(
        self, state: ExplorerState, leases: list[Lease], newer: Newer | None = None
    ) -> tuple[ExplorerState, list[Group]]:
        """Goes on with what is unfinished, and begins a group for each lease.

        What is drawn depends on the weights, the prompt, and (seed, ordinal, attempt, row) alone.

        Args:
          newer: asked for newer weights again and again, with those that are in use; completions
            that have begun go on with them.

        Returns:
          The weights that were in use at the end with what is unfinished then, and the groups that
          are whole, in the order of their leases; rewards are still 0.

        Raises:
          ValueError: there is nothing to do, or more than there is room for.
        """

        def swap() -> None:
            nonlocal state
            if newer is not None and (found := newer(state)) is not None:
                state = state._replace(version=found.version, params=found.params)
                self.engine.load(state.params, state.version)

        under_way = len(state.unfinished) + len(leases)
        if not 0 < under_way <= self.groups:
            raise ValueError(
                f"A rollout has 1 to {self.groups} groups under way, not {under_way}:"
                f" {len(state.unfinished)} unfinished ones and {len(leases)} leases."
            )
        if self.engine.version != state.version:  # Else a cache would be recomputed for nothing.
            self.engine.load(state.params, state.version)
        begun = (*state.unfinished, *self._begin(leases, self.sampling))
        finished = self.engine.advance(self.budget_tokens or None, swap)
        groups = [_with_more(group, finished) for group in begun]
        whole = [self._group(group) for group in groups if self._is_whole(group)]
        unfinished = tuple(group for group in groups if not self._is_whole(group))
        return state._replace(unfinished=unfinished), whole

    def compile(self, params: Params) -> None:
        """Compiles what a full rollout begins with, by doing one that is thrown away."""
        prompts = self.task.train[: self.groups]
        few = min(self.sampling.max_new_tokens, self.engine.chunk_tokens)
        sampling = dataclasses.replace(self.sampling, max_new_tokens=few, min_new_tokens=0)
        self.engine.load(params, version=_NO_VERSION)
        self._begin([Lease(0, i, 0, prompt) for i, prompt in enumerate(prompts)], sampling)
        self.engine.advance()

    def _begin(self, leases: list[Lease], sampling: Sampling) -> list[UnfinishedGroup]:
        """Has the engine begin a group for each lease."""
        if not leases:
            return []
        tokens, lengths = self.task.encode_prompts([lease.prompt.text for lease in leases])
        prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        requests = [
            Request(prompt, sampling, self.group_size, (self.seed, lease.ordinal, lease.attempt))
            for prompt, lease in zip(prompts, leases, strict=True)
        ]
        tickets = self.engine.submit(requests)
        baselines: list[int] | list[None] = [None] * len(leases)
        if self.with_baselines:
            greedy = dataclasses.replace(sampling, greedy=True)
            baselines = self.engine.submit([Request(prompt, greedy) for prompt in prompts])
        parts = zip(leases, tickets, baselines, prompts, strict=True)
        return [UnfinishedGroup(*part) for part in parts]

    @property
    def _rows(self) -> int:
        """Completions of a prompt."""
        return self.group_size + self.with_baselines

    def _is_whole(self, group: UnfinishedGroup) -> bool:
        return len(group.completions) == self._rows

    def _group(self, whole: UnfinishedGroup) -> Group:
        """The record of a group of which every completion has finished."""
        lease, prompt = whole.lease, whole.prompt
        shape = (self._rows, self.task.row_tokens)
        tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
        logprobs, versions = np.zeros(shape, np.float32), np.full(shape, -1, np.int32)
        tokens[:, : len(prompt)] = prompt
        for completion in whole.completions:
            is_baseline = completion.ticket == whole.baseline_ticket
            row = self.group_size if is_baseline else completion.index
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
            rewards=np.zeros(self._rows, np.float32),
        )

    def rewarded(self, group: Group, rewards: Float[np.ndarray, " rows"]) -> Group:
        """The group with the rewards of its rows; that of a greedy completion is their baseline."""
        if not self.with_baselines:
            return dataclasses.replace(group, rewards=rewards)
        rows = {
            name: getattr(group, name)[:-1]
            for name in ("tokens", "completion_mask", "behavior_logprobs", "policy_versions")
        }
        baselines = np.full_like(rewards[:-1], rewards[-1])
        return dataclasses.replace(group, **rows, rewards=rewards[:-1], baselines=baselines)


def _with_more(group: UnfinishedGroup, finished: Iterable[Completion]) -> UnfinishedGroup:
    """The group with those completions that are its own."""
    tickets = (group.ticket, group.baseline_ticket)
    own = tuple(completion for completion in finished if completion.ticket in tickets)
    return group._replace(completions=group.completions + own)
