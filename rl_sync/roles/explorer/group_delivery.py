"""Delivery of groups: an explorer gets them scored and inserts them, while it generates others."""

from __future__ import annotations

import collections
import queue
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np

from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.messages.events import GroupsBuffered
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.ports.clock_port import Future, Mailbox, Thread
from rl_sync.records.spans import SpanKind
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.priorities import priority_of
from rl_sync.replay.replay_interface import (
    ReplayError,
    ReplayTimeoutError,
    ReplayUnavailableError,
)
from rl_sync.roles.explorer.actor import Explorer
from rl_sync.roles.master.group_admission import score_columns
from rl_sync.scoring.score_requests import begun_of, judged, last_replies
from rl_sync.tasks.task import Task
from rl_sync.types import Group

_POLL_SECS = 1.0
_PAUSE_SECS = 0.2
_ROLLOUTS_AHEAD = 4
"""Maximum number of rollouts that are being scored while the explorer generates more."""

_MOST_THREADS = 64  # As many requests as the master scores at once.


class GroupDelivery:
    """Gets groups scored by the master, and inserts them into the buffer.

    Args:
      session: the explorer's session. Its first process delivers.
      task, explorer: the task, and the actor that generated the groups.
      replay, table: buffer and table that groups are inserted into.
      beside: whether threads deliver, while the next groups are generated. The groups of several
        rollouts are then scored at once, and inserted in the order of the rollouts. If the
        explorer's rollouts end in parts, each group is scored by itself, and inserted once it is
        scored.
      pause_secs: time between two looks at what may have changed.

    If the replay server may be started again, a thread inserts the last groups again when that has
    happened: the server's checkpoint is older than they are.
    """

    def __init__(
        self,
        session: Session,
        task: Task,
        explorer: Explorer,
        replay: ReplayClient,
        table: str,
        beside: bool,
        pause_secs: float = _PAUSE_SECS,
    ) -> None:
        self._session, self._task, self._explorer = session, task, explorer
        clock = session.clock
        self._replay, self._table, self._pause_secs = replay, table, pause_secs
        ahead = session.settings.groups_ahead if explorer.in_parts else _ROLLOUTS_AHEAD
        self._room = clock.semaphore(ahead)
        self._scored: Mailbox[Future[list[Group]]] = clock.mailbox()
        threads = min(ahead, _MOST_THREADS)
        self._judging = clock.pool(threads, "judging")
        self._fault: BaseException | None = None
        self._over = clock.event()
        self._thread: Thread | None = None
        if beside and session.leads:
            self._thread = clock.thread(self._work, "delivery")
        self._beside = beside
        # No more groups than these can wait in the buffer.
        self._last = collections.deque[Group](maxlen=session.settings.groups_ahead)
        self._keeper: Thread | None = None
        if replay.may_restart and session.leads:
            self._keeper = clock.thread(self._insert_lost, "lost")

    def deliver(self, groups: list[Group]) -> None:
        """Delivers groups, or queues them for the threads once these have room.

        Raises:
          TimeoutError: a wait passed its deadline, now or in a thread.
        """
        if self._beside:
            parts = [[group] for group in groups] if self._explorer.in_parts else [groups]
            self._session.agree("delivery", lambda: self._hand_over(parts))
        else:
            self._session.agree("insert", lambda: self._insert(self._judge(groups)))

    def check(self) -> None:
        """Raises the error of a thread that has failed; for the first process."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Ends the threads; groups that they hold are not delivered."""
        self._over.set()
        self._judging.shutdown(wait=False, cancel_futures=True)
        if self._thread is not None:
            self._thread.join(timeout=2 * _POLL_SECS)
        if self._keeper is not None:
            self._keeper.join(timeout=2 * _POLL_SECS)

    def _hand_over(self, parts: list[list[Group]]) -> None:
        for groups in parts:
            self._await_room()
            judged = self._judging.submit(self._judge_alone, groups)
            if self._explorer.in_parts:
                judged.add_done_callback(self._scored.put)
            else:
                self._scored.put(judged)

    def _await_room(self) -> None:
        deadline = self._session.deadline("groups to be judged", "the reward")
        wait = {"reason": "judgements", "for_whom": "the reward"}
        if not self._room.acquire(blocking=False):
            with self._session.spans.span(SpanKind.WAIT, **wait):
                while not self._room.acquire(timeout=_POLL_SECS):
                    self.check()
                    deadline()

    def _work(self) -> None:
        """Inserts scored groups: rollout by rollout, or each group once it is scored."""
        with self._session.alone():
            try:
                while not self._over.is_set():
                    try:
                        scored = self._scored.get(timeout=self._pause_secs)
                    except queue.Empty:
                        continue
                    self._insert(scored.result())
                    self._room.release()
            except (RunStoppedError, CancelledError):
                pass  # The main thread notices the stop, too.
            except BaseException as error:
                self._fault = error

    def _judge_alone(self, groups: list[Group]) -> list[Group]:
        with self._session.alone():
            return self._judge(groups)

    def _judge(self, groups: list[Group]) -> list[Group]:
        """Gets groups scored by the master; returns the admitted groups, with their rewards."""
        leases = [group.lease_id for group in groups]
        with self._session.spans.span(SpanKind.SCORE, leases=leases):
            items = [item for group in groups for item in self._written(group)]
            verdicts, admitted = judged(self._session, items)
            rewards, parts = score_columns(verdicts)
            count = len(groups)
            by_part = [None] * count if parts is None else np.split(parts, count)
            groups = [
                self._explorer.rewarded(group, row, scores)
                for group, row, scores in zip(
                    groups, np.split(rewards, count), by_part, strict=True
                )
            ]
            known = [group.rewards[group.completion_mask.any(axis=1)] for group in groups]
            scores = np.concatenate(known)
            self._session.facts["reward"] = float(scores.mean()) if scores.size else None
            wanted = {*admitted}
            return [group for group in groups if group.lease_id in wanted]

    def _written(self, group: Group) -> list[CompletionToScore]:
        """Returns the completions of a group as records for scoring."""
        assert group.truncated is not None, "the explorer says it"
        endings = group.endings or [None] * len(group.tokens)
        cut = [one.is_cut for one in group.endings or ()] or group.truncated.tolist()
        tokenizer, problem = self._task.tokenizer, self._task.train[group.prompt_id]
        return [
            CompletionToScore(
                prompt_id=group.prompt_id,
                held_out=False,
                lease_id=group.lease_id,
                text=tokenizer.decode(ids),
                tokens=ids,
                truncated=is_cut,
                ending=ending,
                begun=begun_of(tokenizer, before, problem, ending),
            )
            for (before, ids), ending, is_cut in zip(last_replies(group), endings, cut, strict=True)
        ]

    def _insert(self, groups: list[Group]) -> None:
        if not groups:
            return
        leases = [group.lease_id for group in groups]
        with self._session.spans.span(SpanKind.INSERT, leases=leases):
            deadline = self._session.deadline("room in the replay buffer", "the trainer")
            while not self._is_put(groups, deadline):
                deadline()
                self._session.clock.sleep(self._pause_secs)
            self._last.extend(groups)
            self._session.call(Happened(GroupsBuffered(tuple(leases))))

    def _insert_lost(self) -> None:
        """Inserts the last groups again whenever the replay server was started again."""
        known = 0
        while not self._over.wait(self._pause_secs):
            breaks = self._replay.breaks
            if breaks == known:
                continue
            groups = [*self._last]
            try:
                if groups:
                    self._put(groups)
            except ReplayTimeoutError:
                pass  # They are inserted once there is room.
            except ReplayError:
                continue  # The server is not back yet.
            known = breaks

    def _is_put(self, groups: list[Group], deadline: Callable[[], None]) -> bool:
        """Inserts groups; returns False if the server has ended, and may be started again.

        Some of the groups may be inserted twice. The trainer takes them once.
        """
        try:
            try:
                self._put(groups)
            except ReplayTimeoutError:
                self._flush(deadline)
        except ReplayUnavailableError:
            if not self._replay.may_restart:
                raise
            return False
        return True

    def _put(self, groups: list[Group]) -> None:
        settings = self._session.settings.replay
        items = [group.to_columns() for group in groups]
        priorities = [priority_of(one, settings.priority, settings.sampler) for one in groups]
        self._replay.insert_many(self._table, items, priorities=priorities, timeout_secs=_POLL_SECS)

    def _flush(self, deadline: Callable[[], None]) -> None:
        """Waits until the groups that had no room in the buffer are inserted."""
        wait = {"reason": "room in the buffer", "for_whom": "the trainer"}
        with self._session.spans.span(SpanKind.WAIT, **wait):
            while True:
                deadline()
                try:
                    return self._replay.flush(_POLL_SECS)
                except ReplayTimeoutError:
                    continue
