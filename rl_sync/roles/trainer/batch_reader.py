"""The trainer's reader: takes groups from the replay buffer until a step's batch is whole.

Only the trainer's first process reads. The others are told when a batch is whole, and get their
shares of it once it is laid out (`rl_sync.roles.trainer.batch_shares`).
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from rl_sync.algorithms.screening import choose, filter_values
from rl_sync.cluster.session import Session
from rl_sync.messages.events import LOST_IN_BUFFER, TOO_STALE, GroupsRefused
from rl_sync.messages.master_calls import AskBatch, AskBuffered, Claim, Happened
from rl_sync.records.spans import SpanKind
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayTimeoutError, ReplayUnavailableError
from rl_sync.roles.trainer.experience_pipeline import Pipeline
from rl_sync.schedule import SyncSchedule
from rl_sync.types import Consumed, Group

FROM_THE_FUTURE = "from the future"
_POLL_SECS = 0.05
_DRAINED_AT_ONCE = 64
_PAUSE_SECS = 0.2
_AUDIT_SECS = 10.0
_log = logging.getLogger(__name__)


class GroupSource(Protocol):
    """Source of a trainer step's groups."""

    def next(self, step: int) -> Consumed:
        """Waits for the groups of a trainer step.

        Raises:
          TimeoutError: they did not come in time.
          RunStoppedError: the run is being stopped.
        """

    def log(self, step: int, batch: Consumed) -> None:
        """Begins to write the batch that was just taken where it is found again after a crash."""

    def settle(self) -> None:
        """Waits until the batches so far would be found again after a crash."""

    def close(self, reason: str) -> None:
        """Gives up groups that were sampled and not trained on."""


class BatchReader:
    """Reads the batch of each step.

    Under exact pulls a batch is the groups of its step, ordered by ordinal, in whatever order they
    arrive. Under latest pulls it is the first groups that are fresh enough; others are refused. If
    more groups are generated than a step trains on, it selects some once all are there.

    Where explorers finish groups in any order, the master says which of the groups at hand are the
    batch, or that groups that are due have to be waited for.

    The buffer may return a group several times. A batch contains it once; further draws of it wait
    for a later step, and are ignored once the group is over: trained on as often as allowed, left
    out, or too stale for the next step.

    Args:
      session: the trainer's session.
      replay: the replay buffer.
      table: name of the table.
      schedule: schedule that starts at the resumed step.
      idle: called in each turn of the wait for experiences.
      pipeline: the user's functions; None for none.
      on_taken: called with the step that waits, and groups that were just taken from the buffer.
      audit_secs: time without any group after which the reader looks for groups that the replay
        server has lost.
      poll_secs: maximum wait of a request for groups.
      filter_weights: weight of each part of the reward in what groups are filtered by; empty for
        the whole reward.
    """

    def __init__(
        self,
        session: Session,
        replay: ReplayClient,
        table: str,
        schedule: SyncSchedule,
        idle: Callable[[], None],
        pipeline: Pipeline | None = None,
        on_taken: Callable[[int, list[Group]], None] = lambda step, groups: None,
        audit_secs: float = _AUDIT_SECS,
        poll_secs: float = _POLL_SECS,
        filter_weights: Sequence[float] = (),
    ):
        self._pipeline, self._on_taken = pipeline, on_taken
        self._audit_secs, self._next_audit_secs = audit_secs, 0.0
        self._poll_secs, self._filter_weights = poll_secs, filter_weights
        self._session, self._replay, self._table = session, replay, table
        self._schedule, self._idle = schedule, idle
        self._groups_needed = session.settings.groups_generated
        self._times = session.settings.replay.times_sampled
        self._by_deadline = session.settings.carries_over
        self._aside: list[Group] = []
        self._trained = collections.Counter[int]()  # Number of uses of kept leases.
        # Leases of the last batch that have ended; the master learns it once the step is computed.
        self._over: set[int] = set()
        self._last_step, self._last_batch = 0, set[int]()
        self._discarded: list[int] = []  # Leases of groups that came after these had ended.

    def next(self, step: int) -> Consumed:
        """See `GroupSource`."""
        deadline = self._session.deadline(f"the batch of trainer step {step}", "the explorers")
        self._next_audit_secs = self._session.clock.now() + self._audit_secs
        wait = self._session.spans.span(SpanKind.WAIT, reason="experiences", step=step)
        with wait as attributes:
            attributes["dropped"] = dropped = self._session.agree(
                "refused", lambda: self._refuse_unfit(step)
            )

            batch: list[Group] = []  # Filled in the process that reads.

            take = self._turn_by_deadline if self._by_deadline else self._turn

            def turn() -> tuple[bool, list[int]]:
                taken, refused = take(step, deadline)
                batch.extend(taken or [])
                return taken is not None, refused

            while True:
                is_whole, refused = self._session.agree("batch", turn)
                dropped += refused
                if is_whole:
                    return self._consume(step, batch) if self._session.leads else Consumed([], [])
                self._idle()

    @property
    def aside(self) -> list[Group]:
        """Groups that were taken from the buffer, and that no batch has consumed yet."""
        return [*self._aside]

    @property
    def uses(self) -> dict[int, int]:
        """Number of steps that have trained on each group that later steps may train on again."""
        return {**self._trained}

    def go_on(
        self, step: int, aside: Sequence[Group], uses: Mapping[int, int], over: Collection[int]
    ) -> None:
        """Goes on where an earlier process of the trainer ended.

        The buffer is emptied, since only then it is known which groups were lost with that process,
        or with the replay server. These are leased again.

        Args:
          step: the first step that is read.
          aside, uses: the values of these attributes when that process ended.
          over: leases that the steps before have consumed, whether or not they are reported yet.
        """
        self._over = {*over}
        self._session.agree("going on", lambda: self._go_on(step, aside, uses))

    def _go_on(self, step: int, aside: Sequence[Group], uses: Mapping[int, int]) -> None:
        buffered = self._session.call(AskBuffered()).lease_ids
        self._keep(aside)
        while self._take(step, _DRAINED_AT_ONCE):
            pass
        there = {group.lease_id for group in self._aside} | self._over
        lost = tuple(lease_id for lease_id in buffered if lease_id not in there)
        self._trained.update({i: count for i, count in uses.items() if i in there})
        if lost:
            _log.warning("%d groups are lost, and leased again.", len(lost))
            self._session.call(Happened(GroupsRefused(lost, LOST_IN_BUFFER)))

    def close(self, reason: str) -> None:
        """See `GroupSource`."""
        self._session.agree("given up", lambda: self._refuse(self._aside, reason))

    def _turn(
        self, step: int, deadline: Callable[[], None]
    ) -> tuple[list[Group] | None, list[int]]:
        """Takes the groups that have arrived.

        Returns:
          The batch if it is whole, and the refused lease ids.
        """
        refused: list[int] = []
        if missing := self._groups_needed - len(self._fitting(step)):
            deadline()
            came = self._take(step, missing)
            refused = self._take_discarded() + self._refuse_unfit(step) + self._audit_if_due(came)
        batch = self._fitting(step)
        if len(batch) < self._groups_needed:
            return None, refused
        return batch, refused

    def _turn_by_deadline(
        self, step: int, deadline: Callable[[], None]
    ) -> tuple[list[Group] | None, list[int]]:
        """Takes groups that have arrived, and asks the master which of them are the batch.

        While groups that are due are waited for, it takes all that arrive: the buffer may be full
        of others.

        Returns:
          See `_turn`.
        """
        deadline()
        drawn = self._draw(step, self._groups_needed - len(self._aside))
        self._aside += self._unconsumed(drawn)
        refused = self._refuse_unfit(step) + self._audit_if_due(bool(drawn))
        if len(self._aside) < self._groups_needed and not drawn:
            return None, refused
        at_hand = {group.lease_id: group for group in self._aside}
        answer = self._session.call(AskBatch(step, [*at_hand]))
        self._forget(answer.over)
        if answer.lease_ids:
            return [at_hand[lease_id] for lease_id in answer.lease_ids], refused
        if len(self._aside) >= self._groups_needed and (due := self._draw(step, 1)):
            due += self._draw(step, self._groups_needed, timeout_secs=0.0)
            self._aside += self._unconsumed(due)
        return None, refused

    def _unconsumed(self, groups: Sequence[Group]) -> list[Group]:
        """Returns the groups without further copies of those that the last batch has used up."""
        return [group for group in groups if group.lease_id not in self._over]

    def _consume(self, step: int, batch: list[Group]) -> Consumed:
        """Selects from a whole batch, and removes it from the groups at hand."""
        algorithm, trainer = self._session.settings.algorithm, self._session.settings.trainer
        made, notes = self._pipeline(step, batch) if self._pipeline else (batch, {})
        rewards = [filter_values(one.rewards, one.parts, self._filter_weights) for one in made]
        chosen = choose(algorithm.screening, rewards, trainer.groups_per_step, algorithm.keep)
        groups = [made[i] for i in chosen]
        left_out = [group.lease_id for i, group in enumerate(batch) if i not in chosen]
        self._trained.update(group.lease_id for group in groups)
        kept = [group.lease_id for group in groups if self._is_kept(step, group)]
        self._last_step, self._last_batch = step, {group.lease_id for group in batch}
        self._over = self._last_batch - set(kept)
        self._forget(self._over)
        taken = {id(group) for group in batch}  # Other draws of the same groups are kept.
        self._aside = [group for group in self._aside if id(group) not in taken]
        return Consumed(groups, left_out, kept, notes)

    def _is_kept(self, step: int, group: Group) -> bool:
        """Says whether the next step may again train on a group of this step."""
        is_fresh = self._schedule.accepts(step + 1, group.oldest_version)
        return self._trained[group.lease_id] < self._times and is_fresh

    def _forget(self, lease_ids: Collection[int]) -> None:
        """Forgets groups that no step will train on any more."""
        self._aside = [group for group in self._aside if group.lease_id not in lease_ids]
        for lease_id in lease_ids:
            del self._trained[lease_id]

    @property
    def _exact(self) -> bool:
        return self._schedule.pull == "exact"

    def _fitting(self, step: int) -> list[Group]:
        """Returns the groups at hand that the step may consume, in the batch's order."""
        distinct = {group.lease_id: group for group in self._aside}
        if not self._exact:
            return [*distinct.values()][: self._groups_needed]
        ordinals = range((step - 1) * self._groups_needed, step * self._groups_needed)
        fitting = [group for group in distinct.values() if group.ordinal in ordinals]
        return sorted(fitting, key=lambda group: group.ordinal)

    def _refuse_unfit(self, step: int) -> list[int]:
        """Refuses groups that no step may train on any more; returns their lease ids."""
        if self._exact:
            return []
        schedule = self._schedule
        late = [g for g in self._aside if schedule.staleness(step, g.oldest_version) >= 0]
        late = [g for g in late if not schedule.accepts(step, g.oldest_version)]
        early = [g for g in self._aside if schedule.staleness(step, g.oldest_version) < 0]
        return self._refuse(late, TOO_STALE) + self._refuse(early, FROM_THE_FUTURE)

    def _refuse(self, groups: list[Group], reason: str) -> list[int]:
        lease_ids = [*dict.fromkeys(group.lease_id for group in groups)]
        if lease_ids:
            self._session.call(Happened(GroupsRefused(tuple(lease_ids), reason)))
        self._forget(lease_ids)
        return lease_ids

    def _audit_if_due(self, came: bool) -> list[int]:
        """Audits the buffer if no group has come for a while; returns the lost groups' leases."""
        lost: list[int] = []
        if not came and self._session.clock.now() < self._next_audit_secs:
            return lost
        if not came:
            lost = self._audit()
        self._next_audit_secs = self._session.clock.now() + self._audit_secs
        return lost

    def _audit(self) -> list[int]:
        """Gives up groups that the replay server has lost, so that they are generated again.

        A server that is started again has the groups of its last checkpoint, and soon those that
        explorers insert again. If the table is still empty, a group that was inserted before is
        with the trainer, or it is lost: its explorer has died, too.

        Returns:
          The lease ids of the lost groups.
        """
        if not self._replay.may_restart:
            return []
        buffered = self._session.call(AskBuffered())
        try:
            if self._replay.info()[self._table].current_size:
                return []
        except ReplayUnavailableError:
            return []
        held = {group.lease_id for group in self._aside}
        if buffered.step < self._last_step:
            held |= self._last_batch
        lost = [lease_id for lease_id in buffered.lease_ids if lease_id not in held]
        if lost:
            _log.warning("The replay server has lost %d groups: %s.", len(lost), lost)
            self._session.call(Happened(GroupsRefused(tuple(lost), LOST_IN_BUFFER)))
            self._forget(lost)
        return lost

    def _take(self, step: int, count: int) -> bool:
        """Takes groups that arrived, for the batch of a step; returns whether there were any."""
        groups = self._draw(step, count)
        self._keep(groups)
        return bool(groups)

    def _keep(self, groups: Sequence[Group]) -> None:
        """Keeps groups whose leases have not ended."""
        if not groups:
            return
        claimed = self._session.call(Claim([group.lease_id for group in groups]))
        over = self._over.union(claimed)
        self._aside += [group for group in groups if group.lease_id not in over]
        self._discarded += [group.lease_id for group in groups if group.lease_id in over]

    def _take_discarded(self) -> list[int]:
        """Returns the leases of groups that were discarded, once each."""
        discarded, self._discarded = self._discarded, []
        return [*dict.fromkeys(discarded)]

    def _draw(self, step: int, count: int, timeout_secs: float | None = None) -> list[Group]:
        """Takes up to so many groups from the buffer; none if none arrives in time."""
        if count <= 0:
            return []
        wait = self._poll_secs if timeout_secs is None else timeout_secs
        try:
            samples = self._replay.sample(self._table, count, timeout_secs=wait)
        except ReplayTimeoutError:
            return []
        except ReplayUnavailableError:
            if not self._replay.may_restart:
                raise
            self._session.clock.sleep(_PAUSE_SECS)
            return []
        groups = [Group.from_columns(sample.columns) for sample in samples]
        self._on_taken(step, groups)
        return groups
