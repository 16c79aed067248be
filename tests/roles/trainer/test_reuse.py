"""Groups that several steps train on: the reader, a real buffer and the master together."""

import collections
import contextlib
import itertools
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

from rl_sync.messages.events import (
    TOO_STALE,
    BatchTrained,
    GrantLeases,
    GroupsBuffered,
    VersionPublished,
)
from rl_sync.messages.master_calls import Claim, Happened
from rl_sync.replay.priorities import priority_of
from rl_sync.replay.replay_interface import ReplayTimeoutError
from rl_sync.replay.store import EmbeddedTable, Stored
from rl_sync.replay.tables import queue
from rl_sync.roles.master import transition
from rl_sync.roles.master.state import MasterSettings
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.schedule import resolve
from rl_sync.types import Group
from tests.cluster.memory_session import MemorySession
from tests.roles.master.mastering import accounted, lease, started, take

BATCH, GENERATED, EXPLORERS = 4, 5, 2


class Buffer:
    """A table in this process, in place of a client of a server's."""

    may_restart = False

    def __init__(self, spec):
        self.table, self.keys = EmbeddedTable(spec), itertools.count()

    def insert(self, table, columns, *, priority, timeout_secs):
        del table
        item = Stored(next(self.keys), priority, columns)
        self.table.submit(item)
        if self.table.wait_inserted([item], time.monotonic() + timeout_secs):
            raise ReplayTimeoutError

    def sample(self, table, count=1, *, timeout_secs):
        del table
        drawn = self.table.sample(count, time.monotonic() + timeout_secs)
        if not drawn:
            raise ReplayTimeoutError
        return [SimpleNamespace(columns=one.payload, **vars(one)) for one in drawn]


class Run:
    """A run whose explorers work while the trainer waits, and whose steps are reported late.

    Attributes:
      trained: what each step trained on.
    """

    def __init__(self, sampler, times, schedule, steps, generated, seed=0, max_size=None):
        self.times, self.schedule, self.sampler, self.generated = (
            times,
            schedule,
            sampler,
            generated,
        )
        capacity = max_size or schedule.batches_ahead * generated + EXPLORERS * generated
        self.replay = Buffer(queue("groups", capacity, sampler, times))
        self.state = started(
            MasterSettings(
                schedule, steps, generated, EXPLORERS, generated, 10.0, times_sampled=times
            )
        )
        self.draw = random.Random(seed)
        self.held = {}
        self.turns = 0
        self.report = None
        self.trained = []
        self.reader = BatchReader(
            self._session(), self.replay, "groups", schedule, self.explore, poll_secs=0.0
        )

    def _session(self):
        session = MemorySession(
            self.call,
            sync__mode="asynchronous",
            replay__times_sampled=self.times,
            trainer__groups_per_step=BATCH,
            algorithm__over_sampling=self.generated / BATCH,
            algorithm__filter_zero_variance=True,
            algorithm__keep="best",
        )
        session.deadline = lambda *_: self.deadline
        return session

    def deadline(self):
        self.turns += 1
        assert self.turns < 2000, "the run came to a halt"

    def call(self, call):
        match call:
            case Happened(event):
                self.state, _ = take(self.state, event)
            case Claim(lease_ids):
                self.state, _ = take(self.state, GroupsBuffered(tuple(lease_ids)))
                return [lease_id for lease_id in lease_ids if lease_id not in self.state.live]

    def explore(self):
        """One explorer asks for work, or delivers what it has had for a while."""
        if self.draw.random() < 0.2:
            self.settle()
        explorer = self.draw.randint(1, EXPLORERS)
        if explorer not in self.held:
            self.state, answer = lease(self.state, explorer)
            if isinstance(answer, GrantLeases):
                self.held[explorer] = answer
        elif self.draw.random() < 0.5:
            for one in self.held.pop(explorer).leases:
                self.insert(self.group(one))
                if self.draw.random() < 0.5:  # Or the trainer is the first to tell.
                    self.state, _ = take(self.state, GroupsBuffered((one.lease_id,)))

    def insert(self, group):
        priority = priority_of(group, "reward", self.sampler)
        columns = group.to_columns()
        with contextlib.suppress(ReplayTimeoutError):  # It goes in when there is room.
            self.replay.insert("groups", columns, priority=priority, timeout_secs=0.0)

    def group(self, one):
        return Group(
            lease_id=one.lease_id,
            ordinal=one.ordinal,
            prompt_id=0,
            explorer=one.explorer,
            tokens=np.zeros((2, 2), np.int32),
            completion_mask=np.ones((2, 2), bool),
            behavior_logprobs=np.zeros((2, 2), np.float32),
            policy_versions=np.full((2, 2), one.version, np.int32),
            rewards=np.array([0.0, self.draw.random()], np.float32),
        )

    def step(self, step):
        """Reads a batch; the step before may be reported at any time until then."""
        batch = self.reader.next(step)
        self.settle()
        self.report = BatchTrained(
            step,
            tuple(group.lease_id for group in batch.groups),
            tuple(batch.left_out),
            tuple(batch.kept),
        )
        self.trained.append(batch.groups)
        if self.schedule.publishes_after(step):
            self.state, _ = take(self.state, VersionPublished(step))

    def settle(self):
        if self.report is not None:
            self.state, _ = take(self.state, self.report)
            self.report = None
            assert accounted(self.state) == self.state.leased

    def all(self, steps):
        for step in range(1, steps + 1):
            self.step(step)
        self.settle()
        return collections.Counter(group.lease_id for groups in self.trained for group in groups)


SAMPLERS = ("fifo", "lifo", "uniform", "prioritized", "min_heap", "max_heap")
STALENESS = [(1, 0, 1), (1, 1, 2), (1, 3, 2), (2, 1, 2), (2, 5, 3), (3, 2, 3)]
"""Intervals, bounds of the staleness, and how many times a group is trained on."""


@pytest.mark.nightly
def test_batches_are_of_different_groups_that_are_fresh_and_not_used_up(subtests):
    for sampler, staleness, generated, seed in itertools.product(
        SAMPLERS, STALENESS, (BATCH, GENERATED), range(3)
    ):
        with subtests.test(sampler, staleness=staleness, generated=generated, seed=seed):
            interval, max_staleness, times = staleness
            schedule = resolve("custom", interval, 0, max_staleness, "latest")
            run = Run(sampler, times, schedule, 12, generated, seed)
            uses = run.all(12)
            assert max(uses.values()) <= times
            assert times == 1 or max(uses.values()) > 1
            for step, groups in enumerate(run.trained, start=1):
                assert len({group.lease_id for group in groups}) == BATCH
                assert all(schedule.accepts(step, group.oldest_version) for group in groups)
            # A prompt that some step has trained on is not tried again.
            prompts = {(group.ordinal, group.lease_id) for batch in run.trained for group in batch}
            assert len({ordinal for ordinal, _ in prompts}) == len(prompts)
            run.reader.close("the run ended")
            state, _ = transition.end(run.state)
            assert accounted(state) == state.leased
            assert state.trained == len(uses)


@pytest.mark.parametrize("max_size", [1, 3])
def test_a_small_buffer_makes_explorers_wait_and_nobody_else(max_size):
    run = Run("uniform", 2, resolve("asynchronous"), 12, BATCH, max_size=max_size)
    assert sum(run.all(12).values()) == 12 * BATCH


def test_first_in_first_out_nothing_is_generated_in_vain_and_each_group_is_used_up():
    schedule = resolve("custom", 1, 0, 5, "latest")
    run = Run("fifo", 3, schedule, 12, BATCH)
    uses = run.all(12)
    assert run.state.dropped.get(TOO_STALE, 0) == 0
    assert uses == dict.fromkeys(uses, 3)
    assert run.state.leased == 12 * BATCH // 3


def test_a_run_that_goes_on_generates_again_what_no_step_has_trained_on():
    run = Run("uniform", 2, resolve("custom", 1, 0, 3, "latest"), 12, BATCH, seed=1)
    for step in range(1, 6):
        run.step(step)
    run.settle()
    assert any(one.trained for one in run.state.live.values()), "some could be trained on again"
    trained = {group.ordinal for groups in run.trained for group in groups}
    again = {ordinal for ordinal, _ in transition.position(run.state).again}
    assert not again & trained
    assert again | trained == set(range(run.state.next_ordinal))
