"""The explorer as an actor: it turns leases and weights of a known version into groups."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rl_sync.ending import CUTS
from rl_sync.roles.explorer.group_rows import TOKEN_COLUMNS, columns_of
from rl_sync.roles.master.group_admission import filled
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.episode_engine import EpisodeEngine
from rl_sync.rollout.episode_records import EpisodeRequest, Played
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.task import Task
from rl_sync.types import Group, Lease, Params, Prompt

_NO_VERSION = -1  # Of weights whose completions are thrown away.


class DifferentTaskError(ValueError):
    """A lease's problem is another one in the explorer's own task."""


Finished = FinishedCompletion | Played
"""A finished completion of a prompt, or a finished episode."""


class UnfinishedGroup(NamedTuple):
    """A group with completions or episodes in flight in the engine.

    Attributes:
      lease: its lease.
      ticket: the ticket of its request in the engine.
      baseline_ticket: the ticket of its greedy completion; None without one.
      prompt: token ids; empty where environments say what the prompt is.
      completions: the finished ones.
    """

    lease: Lease
    ticket: int
    baseline_ticket: int | None
    prompt: Int[np.ndarray, " P"]
    completions: tuple[Finished, ...] = ()


class ExplorerState(NamedTuple):
    """An explorer's weights, and its unfinished groups.

    Attributes:
      version, params: the weights.
      unfinished: the groups that the next rollout continues, in the order of their leases.
    """

    version: int
    params: Params
    unfinished: tuple[UnfinishedGroup, ...] = ()


Newer = Callable[[ExplorerState], ExplorerState | None]
"""A function from the weights in use to newer ones, if there are any."""


@dataclasses.dataclass(frozen=True)
class Explorer:
    """The explorer's engine and settings; its changing state is `ExplorerState`.

    Attributes:
      number: the number of the explorer, from 1.
      engine: the rollout engine, or one of episodes in an environment. Between two rollouts it
        holds the state's unfinished groups.
      task: the problems.
      sampling: the sampling choices.
      group_size: G, the number of completions of a prompt.
      groups: the largest number of groups in flight; streaming, the number of those that fill the
        slots, and of one that waits for the next free ones.
      seed: the seed of the run.
      budget_tokens: the number of drawn tokens after which a rollout ends; 0 for no limit.
      in_parts: whether a rollout is one chunk of tokens, after which whole groups can be delivered.
      streams: whether other groups can begin then, too.
      with_baselines: whether a greedy completion is generated for each group. It is the last row of
        the group until the group is judged (`rewarded`).
    """

    number: int
    engine: Engine | EpisodeEngine
    task: Task
    sampling: Sampling
    group_size: int
    groups: int
    seed: int
    budget_tokens: int = 0
    in_parts: bool = False
    streams: bool = False
    with_baselines: bool = False

    def rollout(
        self, state: ExplorerState, leases: list[Lease], newer: Newer | None = None
    ) -> tuple[ExplorerState, list[Group]]:
        """Continues unfinished groups, and begins a group for each lease.

        Draws depend only on the weights, the prompt, and (seed, ordinal, attempt, row).

        Args:
          newer: called repeatedly with the weights in use, to ask for newer weights; completions in
            flight continue with these.

        Returns:
          The state at the end, with the weights last in use and the unfinished groups; and the
          whole groups, in the order of their leases. Their rewards are still 0.

        Raises:
          ValueError: there is nothing to do, or more than there is room for.
          DifferentTaskError: the explorer's task is not the one that leases are of.
        """

        def swap() -> None:
            nonlocal state
            if newer is not None and (found := newer(state)) is not None:
                state = state._replace(version=found.version, params=found.params)
                self.engine.load(state.params, state.version)

        under_way = len(state.unfinished) + len(leases)
        if not under_way or len(leases) > self.room(state):
            raise ValueError(
                f"A rollout has 1 to {self.room(state) + len(state.unfinished)} groups in flight,"
                f" not {under_way}: {len(state.unfinished)} unfinished ones and"
                f" {len(leases)} leases."
            )
        if self.engine.version != state.version:  # Else a cache is recomputed for nothing.
            self.engine.load(state.params, state.version)
        begun = (*state.unfinished, *self._begin(leases, self.sampling))
        # The engine looks at the budget after each chunk.
        budget = 1 if self.in_parts else self.budget_tokens or None
        finished = self.engine.advance(budget, swap)
        groups = _with_more(begun, finished)
        whole = [self._group(group) for group in groups if self._is_whole(group)]
        unfinished = tuple(group for group in groups if not self._is_whole(group))
        return state._replace(unfinished=unfinished), whole

    def room(self, state: ExplorerState) -> int:
        """Returns the number of groups that may be begun beside the unfinished ones.

        Streaming, that is as many as it takes to fill the slots, and to have completions waiting:
        the engine ends a chunk early for these.
        """
        if not self.streams:
            return self.groups - len(state.unfinished)
        return max(0, (self.engine.slots - self.engine.occupied) // self._rows + 1)

    def complete(
        self, state: ExplorerState, requests: Sequence[Any]
    ) -> tuple[ExplorerState, list[list[Any]]]:
        """Completes other requests with the state's weights, beside the unfinished groups.

        Returns:
          The state, whose groups have all their completions, so that the next rollout returns
          them; and the completions of each request.
        """
        if self.engine.version != state.version:
            self.engine.load(state.params, state.version)
        tickets = self.engine.submit(requests)
        finished: list[Finished] = [*self.engine.advance()]
        finished.sort(key=lambda one: one.index)
        unfinished = tuple(_with_more(state.unfinished, finished))
        by_ticket: dict[int, list[Finished]] = {ticket: [] for ticket in tickets}
        for completion in finished:
            if completion.ticket in by_ticket:
                by_ticket[completion.ticket].append(completion)
        return state._replace(unfinished=unfinished), list(by_ticket.values())

    def compile(self, params: Params) -> None:
        """Compiles the programs that a full rollout begins with, by a rollout that is dropped."""
        if isinstance(self.engine, EpisodeEngine):  # No environment is disturbed.
            dataclasses.replace(self, engine=self.engine.engine).compile(params)
            return
        prompts = self.task.train[: self.groups]
        few = min(self.sampling.max_new_tokens, self.engine.chunk_tokens)
        sampling = dataclasses.replace(self.sampling, max_new_tokens=few, min_new_tokens=0)
        self.engine.load(params, version=_NO_VERSION)
        self._begin([Lease(0, i, 0, prompt) for i, prompt in enumerate(prompts)], sampling)
        self.engine.advance()

    def close(self) -> None:
        """Ends the environments, if there are any."""
        if isinstance(self.engine, EpisodeEngine):
            self.engine.close()

    def _begin(self, leases: list[Lease], sampling: Sampling) -> list[UnfinishedGroup]:
        """Begins a group in the engine for each lease."""
        if not leases:
            return []
        if isinstance(self.engine, EpisodeEngine):
            return self._begin_episodes(self.engine, leases, sampling)
        tokens, lengths = self.task.encode_prompts([lease.prompt.text for lease in leases])
        prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        requests = [
            CompletionRequest(
                prompt, sampling, self.group_size, (self.seed, lease.ordinal, lease.attempt)
            )
            for prompt, lease in zip(prompts, leases, strict=True)
        ]
        tickets = self.engine.submit(requests)
        baselines: list[int] | list[None] = [None] * len(leases)
        if self.with_baselines:
            greedy = dataclasses.replace(sampling, greedy=True)
            baselines = self.engine.submit(
                [CompletionRequest(prompt, greedy) for prompt in prompts]
            )
        parts = zip(leases, tickets, baselines, prompts, strict=True)
        return [UnfinishedGroup(*part) for part in parts]

    def _begin_episodes(
        self, engine: EpisodeEngine, leases: list[Lease], sampling: Sampling
    ) -> list[UnfinishedGroup]:
        """Begins the episodes of a group for each lease."""
        requests = [
            EpisodeRequest(
                row=self._row_of(lease.prompt),
                sampling=sampling,
                completions=self.group_size,
                seed=(self.seed, lease.ordinal, lease.attempt),
                number=lease.ordinal,
            )
            for lease in leases
        ]
        tickets = engine.submit(requests)
        baselines: list[int] | list[None] = [None] * len(leases)
        if self.with_baselines:
            greedy = dataclasses.replace(sampling, greedy=True)
            baselines = engine.submit(
                [dataclasses.replace(one, sampling=greedy, completions=1) for one in requests]
            )
        nothing = np.zeros(0, np.int32)
        return [
            UnfinishedGroup(lease, ticket, baseline, nothing)
            for lease, ticket, baseline in zip(leases, tickets, baselines, strict=True)
        ]

    def _row_of(self, asked: Prompt) -> dict[str, Any]:
        """Returns all fields of a prompt's row, which leases leave out, from the explorer's task.

        Raises:
          DifferentTaskError: the task has another problem of this number, or none.
        """
        number, train = asked.prompt_id, self.task.train
        own = train[number] if number < len(train) else None
        if own is None or (own.text, own.answer) != (asked.text, asked.answer):
            here = "none" if own is None else f"{own.text[:80]!r} ({own.answer[:40]!r})"
            raise DifferentTaskError(
                f"Training problem {number} is {asked.text[:80]!r} ({asked.answer[:40]!r}) in the"
                f" master, and {here} in explorer {self.number}. Each process loads the task"
                " itself: it must give the same rows in the same order for the same seed, and on"
                " each machine from the same files."
            )
        return own.fields

    @property
    def _rows(self) -> int:
        """Number of completions of a prompt."""
        return self.group_size + self.with_baselines

    def _is_whole(self, group: UnfinishedGroup) -> bool:
        return len(group.completions) == self._rows

    def _group(self, whole: UnfinishedGroup) -> Group:
        """Makes the record of a group whose completions have all finished."""
        lease = whole.lease
        rows = sorted(whole.completions, key=lambda one: self._row(whole, one))
        columns: dict[str, Any] = columns_of(rows, whole.prompt)
        drawn = columns["policy_versions"] >= 0
        # So that each trajectory has a version, also one whose environment never began.
        columns["policy_versions"][~drawn.any(axis=1), 0] = self.engine.version
        endings = tuple(one.ending for one in rows if isinstance(one, Played))
        return Group(
            lease_id=lease.lease_id,
            ordinal=lease.ordinal,
            prompt_id=lease.prompt.prompt_id,
            explorer=self.number,
            rewards=np.zeros(self._rows, np.float32),
            truncated=np.array([one.reason in CUTS for one in endings]) if endings else None,
            endings=endings or None,
            **columns,
        )

    def _row(self, group: UnfinishedGroup, one: Finished) -> int:
        """Returns the row of a completion in its group."""
        return self.group_size if one.ticket == group.baseline_ticket else one.index

    def rewarded(self, group: Group, rewards: Float[np.ndarray, " rows"]) -> Group:
        """Returns the group with rewards; a greedy completion's reward becomes the baseline.

        The tokens of completions that could not be judged are masked; see `filled`.

        Args:
          rewards: NaN for those that could not be judged.
        """
        rewards, learned = filled(rewards, self.with_baselines)
        group = dataclasses.replace(group, rewards=rewards)
        if not learned.all():
            mask = group.completion_mask & learned[:, None]
            group = dataclasses.replace(group, completion_mask=mask)
        return self._split(group)

    def _split(self, group: Group) -> Group:
        """Takes the greedy completion off the group."""
        if not self.with_baselines:
            return group
        rewards = group.rewards
        rows = {
            name: getattr(group, name)[:-1]
            for name in TOKEN_COLUMNS
            if getattr(group, name) is not None
        }
        if group.truncated is not None:
            rows["truncated"] = group.truncated[:-1]
        baselines = np.full_like(rewards[:-1], rewards[-1])
        return dataclasses.replace(group, **rows, rewards=rewards[:-1], baselines=baselines)


def _with_more(
    groups: Iterable[UnfinishedGroup], finished: Iterable[Finished]
) -> list[UnfinishedGroup]:
    """Adds to each group those finished completions that belong to it."""
    by_ticket = collections.defaultdict[int | None, list[Finished]](list)
    for one in finished:
        by_ticket[one.ticket].append(one)
    return [
        group._replace(
            completions=(
                *group.completions,
                *by_ticket.get(group.ticket, ()),
                *by_ticket.get(group.baseline_ticket, ()),
            )
        )
        for group in groups
    ]
