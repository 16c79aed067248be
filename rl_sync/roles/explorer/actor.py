"""The explorer as an actor: it turns leases, and weights of a known version, into groups.

`rl_sync.roles.explorer.life` decides when it does so, and when it takes newer weights.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rl_sync.ending import CUTS, Ending
from rl_sync.roles.explorer.group_rows import TOKEN_COLUMNS, columns_of
from rl_sync.roles.master.group_admission import filled
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import EpisodeRequest, Played
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion, Handle
from rl_sync.rollout.sampling import Sampling
from rl_sync.sequence_images import SequenceImages
from rl_sync.tasks.task import Task
from rl_sync.token_records import NO_RECORDS, TokenRecords
from rl_sync.types import CompletionProgress, Group, Lease, Params, Prompt

_NO_VERSION = -1  # Version of weights whose completions are thrown away.


class DifferentTaskError(ValueError):
    """A lease's problem differs from the one in the explorer's own task."""


Finished = FinishedCompletion | Played
"""A finished completion of a prompt, or a finished episode."""


class UnfinishedGroup(NamedTuple):
    """A group with completions or episodes in flight in the engine.

    Attributes:
      lease: lease of the group.
      ticket: ticket of its request in the engine.
      baseline_ticket: ticket of its greedy completion; None without one.
      prompt: token ids of the prompt; empty if environments give the prompt.
      images: images of the prompt; None for text alone.
      completions: finished completions.
    """

    lease: Lease
    ticket: int
    baseline_ticket: int | None
    prompt: Int[np.ndarray, " P"]
    images: SequenceImages | None = None
    completions: tuple[Finished, ...] = ()


class ExplorerState(NamedTuple):
    """An explorer's weights, and its unfinished groups.

    Attributes:
      version, params: version of the weights, and the weights.
      unfinished: groups that the next rollout continues, in the order of their leases.
    """

    version: int
    params: Params
    unfinished: tuple[UnfinishedGroup, ...] = ()


Newer = Callable[[ExplorerState], ExplorerState | None]
"""A function that returns newer weights than the current ones, if there are any."""


@dataclasses.dataclass(frozen=True)
class Explorer:
    """The explorer's engine and settings; its changing state is `ExplorerState`.

    Attributes:
      number: number of the explorer, from 1.
      engine: the rollout engine, or an episode engine. Between two rollouts it holds the state's
        unfinished groups.
      task: the task with the problems.
      sampling: sampling choices.
      group_size: number of completions of a prompt, G.
      groups: maximum number of groups in flight. With streaming: enough groups to fill all slots,
        plus one that waits for the next free ones.
      seed: seed of the run.
      budget_tokens: number of sampled tokens after which a rollout ends; 0 for no limit.
      in_parts: whether a rollout is one chunk of tokens, after which whole groups can be delivered.
      streams: whether new groups can also begin after each chunk.
      with_baselines: whether a greedy completion is generated for each group. It is the last row of
        the group until the group is scored (`rewarded`).
      records: shapes of what is recorded of tokens, which groups then have.
      sends_features: whether groups have the features of their images in place of pixels.
    """

    number: int
    engine: RolloutEngine | EpisodeEngine
    task: Task
    sampling: Sampling
    group_size: int
    groups: int
    seed: int
    budget_tokens: int = 0
    in_parts: bool = False
    streams: bool = False
    with_baselines: bool = False
    records: TokenRecords = NO_RECORDS
    sends_features: bool = False

    def rollout(
        self,
        state: ExplorerState,
        leases: list[Lease],
        newer: Newer | None = None,
        beside: Callable[[], None] = lambda: None,
    ) -> tuple[ExplorerState, list[Group]]:
        """Continues unfinished groups, and begins a group for each lease.

        Samples depend only on the weights, the prompt, and (seed, ordinal, attempt, row).

        Args:
          newer: called after each chunk with the current state, to ask for newer weights;
            completions in flight then continue with the newer weights.
          beside: called after each chunk, for other work of the explorer's devices.

        Returns:
          The final state, with the weights last in use and the unfinished groups; and the whole
          groups, in the order of their leases. The rewards of the groups are still 0.

        Raises:
          ValueError: there are no groups to generate, or too many.
          DifferentTaskError: the explorer's task differs from the task of the leases.
        """

        def between(finished: Sequence[Finished]) -> None:
            nonlocal state
            beside()
            if newer is None:
                return
            now = state._replace(unfinished=tuple(_with_more(begun, finished)))
            if (found := newer(now)) is not None:
                state = state._replace(version=found.version, params=found.params)
                self.engine.load(state.params, state.version)

        under_way = len(state.unfinished) + len(leases)
        if not under_way or len(leases) > self.room(state):
            raise ValueError(
                f"A rollout has 1 to {self.room(state) + len(state.unfinished)} groups in flight,"
                f" not {under_way}: {len(state.unfinished)} unfinished ones and"
                f" {len(leases)} leases."
            )
        if self.engine.version != state.version:  # Otherwise caches are recomputed for nothing.
            self.engine.load(state.params, state.version)
        begun = (*state.unfinished, *self._begin(leases, self.sampling))
        # The engine checks the budget after each chunk.
        budget = 1 if self.in_parts else self.budget_tokens or None
        finished = self.engine.advance(budget, between)
        beside()
        groups = _with_more(begun, finished)
        whole = [self._group(group) for group in groups if self._is_whole(group)]
        unfinished = tuple(group for group in groups if not self._is_whole(group))
        return state._replace(unfinished=unfinished), whole

    def room(self, state: ExplorerState) -> int:
        """Returns the number of groups that may begin in addition to the unfinished ones.

        With streaming, these fill all slots, and leave some completions waiting, so that the engine
        ends a chunk early for them.
        """
        if not self.streams:
            return self.groups - len(state.unfinished)
        return max(0, (self.engine.slots - self.engine.occupied) // self._rows + 1)

    def tokens_in_flight(self, state: ExplorerState) -> int:
        """Returns the number of tokens sampled so far for groups that are not whole."""
        whole = [one for group in state.unfinished for one in group.completions]
        return sum(one.sampled_tokens for one in whole) + self.engine.tokens_in_flight

    def compile(self, params: Params) -> None:
        """Compiles the first programs of a full rollout: runs one and drops its completions."""
        if isinstance(self.engine, EpisodeEngine):  # Does not start the environments.
            dataclasses.replace(self, engine=self.engine.engine).compile(params)
            return
        if not self.engine.compiles:
            return
        prompts = self.task.train[: self.groups]
        few = min(self.sampling.max_new_tokens, self.engine.chunk_tokens)
        sampling = dataclasses.replace(self.sampling, max_new_tokens=few, min_new_tokens=0)
        self.engine.load(params, version=_NO_VERSION)
        self._begin([Lease(0, i, 0, prompt) for i, prompt in enumerate(prompts)], sampling)
        self.engine.advance()

    def close(self) -> None:
        """Ends the environments and what the engine has begun."""
        self.engine.close()

    def _begin(self, leases: list[Lease], sampling: Sampling) -> list[UnfinishedGroup]:
        """Begins a group in the engine for each lease."""
        if not leases:
            return []
        if isinstance(self.engine, EpisodeEngine):
            return self._begin_episodes(self.engine, leases, sampling)
        prompts = self.task.asked(self._own(lease.prompt) for lease in leases)
        requests = [
            CompletionRequest(
                asked.ids,
                sampling,
                self.group_size,
                (self.seed, lease.ordinal, lease.attempt),
                images=asked.images,
                begun=_begun(lease, range(self.group_size)),
            )
            for asked, lease in zip(prompts, leases, strict=True)
        ]
        tickets = self.engine.submit(requests)
        baselines: list[int] | list[None] = [None] * len(leases)
        if self.with_baselines:
            greedy = dataclasses.replace(sampling, greedy=True)
            baselines = self.engine.submit(
                [
                    CompletionRequest(
                        asked.ids,
                        greedy,
                        images=asked.images,
                        begun=_begun(lease, range(self.group_size, self._rows)),
                    )
                    for asked, lease in zip(prompts, leases, strict=True)
                ]
            )
        return [
            self._with_ended(UnfinishedGroup(lease, ticket, baseline, asked.ids, asked.images))
            for lease, ticket, baseline, asked in zip(
                leases, tickets, baselines, prompts, strict=True
            )
        ]

    def progress(self, groups: Sequence[UnfinishedGroup]) -> list[dict[int, CompletionProgress]]:
        """Returns the tokens so far of each group's completions, by their rows.

        It has no completion without tokens.
        """
        rows = {
            self._handle(group, row): (number, row)
            for number, group in enumerate(groups)
            for row in range(self._rows)
        }
        found = [
            {self._row(group, one): one.progress() for one in group.completions} for group in groups
        ]
        for handle, progress in self.engine.progress(rows).items():
            number, row = rows[handle]
            if len(progress.tokens):
                found[number][row] = progress
        return found

    def _with_ended(self, group: UnfinishedGroup) -> UnfinishedGroup:
        """Adds to a begun group the completions that ended before its lease was given again."""
        ended = ((row, one) for row, one in group.lease.begun if one.finish is not None)
        return group._replace(
            completions=tuple(
                FinishedCompletion.of(self._handle(group, row), progress) for row, progress in ended
            )
        )

    def _handle(self, group: UnfinishedGroup, row: int) -> Handle:
        """Inverts `_row`."""
        if row < self.group_size:
            return Handle(group.ticket, row)
        assert group.baseline_ticket is not None, "there is a greedy completion"
        return Handle(group.baseline_ticket, 0)

    def _own(self, asked: Prompt) -> Prompt:
        """Returns a prompt with the images of the explorer's own task; leases do not have them."""
        return asked._replace(row=self._row_of(asked)) if self.task.processor else asked

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
                begun=_begun(lease, range(self.group_size)),
            )
            for lease in leases
        ]
        tickets = engine.submit(requests)
        baselines: list[int] | list[None] = [None] * len(leases)
        if self.with_baselines:
            greedy = dataclasses.replace(sampling, greedy=True)
            baselines = engine.submit(
                [
                    dataclasses.replace(
                        one,
                        sampling=greedy,
                        completions=1,
                        begun=_begun(lease, range(self.group_size, self._rows)),
                    )
                    for one, lease in zip(requests, leases, strict=True)
                ]
            )
        nothing = np.zeros(0, np.int32)
        return [
            UnfinishedGroup(lease, ticket, baseline, nothing)
            for lease, ticket, baseline in zip(leases, tickets, baselines, strict=True)
        ]

    def _row_of(self, asked: Prompt) -> dict[str, Any]:
        """Returns all fields of a prompt's row from the explorer's task; leases do not have them.

        Raises:
          DifferentTaskError: the task has another problem with this number, or none.
        """
        number, train = asked.prompt_id, self.task.train
        own = train[number] if number < len(train) else None
        if own is None or (own.text, own.answer) != (asked.text, asked.answer):
            here = "none" if own is None else f"{own.text[:80]!r} ({own.answer[:40]!r})"
            raise DifferentTaskError(
                f"Training problem {number} is {asked.text[:80]!r} ({asked.answer[:40]!r}) in the"
                f" master, but {here} in explorer {self.number}. Each process loads the task"
                " itself: for the same seed it must give the same rows in the same order, from"
                " the same files on each machine."
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
        features = self.engine.features if self.sends_features else None
        columns: dict[str, Any] = columns_of(
            rows, whole.prompt, self.records, whole.images, features
        )
        drawn = columns["policy_versions"] >= 0
        # Each trajectory needs a version, even if its environment never began.
        columns["policy_versions"][~drawn.any(axis=1), 0] = self.engine.version
        endings = tuple(one.ending for one in rows if isinstance(one, Played))
        cut = [
            one.ending.reason in CUTS if isinstance(one, Played) else one.finish == "length"
            for one in rows
        ]
        return Group(
            lease_id=lease.lease_id,
            ordinal=lease.ordinal,
            prompt_id=lease.prompt.prompt_id,
            explorer=self.number,
            rewards=np.zeros(self._rows, np.float32),
            truncated=np.array(cut),
            seats=_seats(endings),
            endings=endings or None,
            **columns,
        )

    def _row(self, group: UnfinishedGroup, one: Finished) -> int:
        """Returns the row of a completion in its group."""
        return self.group_size if one.ticket == group.baseline_ticket else one.index

    def rewarded(
        self,
        group: Group,
        rewards: Float[np.ndarray, " rows"],
        parts: Float[np.ndarray, "rows K"] | None = None,
    ) -> Group:
        """Returns the group with rewards; a greedy completion's reward becomes the baseline.

        The tokens of completions that could not be scored are masked; see `filled`.

        Args:
          rewards: rewards of the rows; NaN for completions that could not be scored.
          parts: scores of the rows by each part of the reward, with the same NaN; None if the
            reward has one part.
        """
        rewards, learned = filled(rewards, self.with_baselines)
        if parts is not None:
            columns = [filled(column, self.with_baselines)[0] for column in parts.T]
            parts = np.stack(columns, axis=1)
        group = dataclasses.replace(group, rewards=rewards, parts=parts)
        if not learned.all():
            mask = group.completion_mask & learned[:, None]
            group = dataclasses.replace(group, completion_mask=mask)
        return self._split(group)

    def _split(self, group: Group) -> Group:
        """Removes the greedy completion from the group."""
        if not self.with_baselines:
            return group
        rewards = group.rewards
        rows = {
            name: getattr(group, name)[:-1]
            for name in TOKEN_COLUMNS
            if getattr(group, name) is not None
        }
        for name in ("truncated", "parts", "seats"):
            if (values := getattr(group, name)) is not None:
                rows[name] = values[:-1]
        baselines = np.full_like(rewards[:-1], rewards[-1])
        return dataclasses.replace(group, **rows, rewards=rewards[:-1], baselines=baselines)


def _seats(endings: Sequence[Ending]) -> Int[np.ndarray, " rows"] | None:
    """Returns the player who learned in each game; None if no game of several players began."""
    if all(ending.seat is None for ending in endings):
        return None
    return np.array([ending.seat or 0 for ending in endings], np.int32)


def _begun(lease: Lease, rows: range) -> dict[int, CompletionProgress]:
    """Returns the begun completions of some rows, by their places among these."""
    return {row - rows.start: progress for row, progress in lease.begun if row in rows}


def _with_more(
    groups: Iterable[UnfinishedGroup], finished: Iterable[Finished]
) -> list[UnfinishedGroup]:
    """Adds to each group its newly finished completions."""
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
