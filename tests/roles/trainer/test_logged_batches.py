"""Batches of a trainer that dies are given again, and those after them go on from the buffer."""

import errno
import logging

import pytest

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.messages.events import LOST_IN_BUFFER, GroupsRefused
from rl_sync.messages.master_calls import AskBuffered, Buffered, Claim, Happened
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.roles.trainer.commands import StartingPoint
from rl_sync.roles.trainer.logged_batches import LoggedBatches
from tests.cluster.memory_session import MemorySession
from tests.roles.trainer.test_batch_reader import Buffer, group

NEEDED = 2


class LoggedAtOnce(LoggedBatches):
    """Batches that are logged once they are taken, as the trainer's loop does it."""

    def next(self, step):
        batch = super().next(step)
        if step > self._point.logged:
            self.log(step, batch)
        return batch


class Trainer:
    """A trainer's batches, over its deaths.

    Args:
      mode: the sync mode.
      ordinals: groups of the buffer, in their order.
    """

    def __init__(self, directory, mode, ordinals, times_sampled=1):
        self.directory, self.mode = directory, mode
        self.buffer = Buffer([group(ordinal, (0.0, 1.0)) for ordinal in ordinals])
        self.buffered = [100 + ordinal for ordinal in dict.fromkeys(ordinals)]
        self.ended, self.refused = set(), {}
        self.times_sampled = times_sampled

    def answer(self, call):
        if isinstance(call, AskBuffered):
            return Buffered(0, self.buffered)
        if isinstance(call, Claim):
            return [lease for lease in call.lease_ids if lease in self.ended]
        if isinstance(call, Happened) and isinstance(call.event, GroupsRefused):
            self.refused[call.event.reason] = call.event.lease_ids
        return None

    def starts(self, point=None):
        session = MemorySession(
            self.answer,
            sync__mode=self.mode,
            sync__max_staleness=8 if self.mode == "asynchronous" else None,
            trainer__groups_per_step=NEEDED,
            replay__times_sampled=self.times_sampled,
            optimizer__updates_per_batch=1,
        )
        turns = iter(range(50))

        def deadline():
            if next(turns, None) is None:
                raise TimeoutError("there are no more groups")

        session.deadline = lambda *_: deadline

        def reader(on_taken):
            schedule = session.settings.schedule
            return BatchReader(
                session, self.buffer, "groups", schedule, lambda: None, on_taken=on_taken
            )

        log = BatchLog(self.directory)
        return LoggedAtOnce(session, log, reader, point or StartingPoint.at(0))

    def goes_on(self, counted, step=0):
        """Starts the next trainer, from a snapshot of `step`."""
        logged = BatchLog(self.directory).reach(step)
        point = StartingPoint(0, step, counted, logged, step, goes_on=True)
        return self.starts(point)


def leases(batch):
    return [one.lease_id - 100 for one in batch.groups]


def test_steps_are_done_again_with_the_same_groups_and_the_next_goes_on(tmp_path):
    trainer = Trainer(tmp_path, "asynchronous", [3, 0, 2, 1, 4, 5])
    first = trainer.starts()
    made = [leases(first.next(step)) for step in (1, 2)]
    first.settle()
    trainer.ended = {103, 100, 102, 101}
    trainer.buffered = [104, 105]
    second = trainer.goes_on(counted=2)
    assert [leases(second.next(step)) for step in (1, 2)] == made == [[3, 0], [2, 1]]
    assert leases(second.next(3)) == [4, 5]
    assert trainer.refused == {}


def test_a_step_that_the_master_does_not_count_yet_has_its_logged_groups_too(tmp_path):
    trainer = Trainer(tmp_path, "asynchronous", [0, 1, 2, 3, 4, 5])
    first = trainer.starts()
    made = [leases(first.next(step)) for step in (1, 2)]
    first.settle()
    trainer.ended, trainer.buffered = {100, 101}, [102, 103, 104, 105]
    second = trainer.goes_on(counted=1)
    assert [leases(second.next(step)) for step in (1, 2)] == made
    assert leases(second.next(3)) == [4, 5], "groups of step 2 are not lost, but consumed"
    assert trainer.refused == {}


def test_a_snapshot_of_a_logged_step_takes_no_batch_that_the_next_step_needs(tmp_path):
    """The snapshot of step 2 deletes the batch of step 1, which the master does not count yet."""
    trainer = Trainer(tmp_path, "asynchronous", [0, 1, 2, 3, 4, 5])
    first = trainer.starts()
    made = [leases(first.next(step)) for step in (1, 2)]
    first.settle()
    trainer.buffered = [100, 101, 102, 103, 104, 105]
    second = trainer.goes_on(counted=0)
    assert [leases(second.next(step)) for step in (1, 2)] == made
    BatchLog(tmp_path).forget(1)
    assert leases(second.next(3)) == [4, 5]
    assert trainer.refused == {}, "groups of steps 1 and 2 are consumed"


def test_groups_of_a_batch_that_was_not_whole_are_not_lost(tmp_path):
    """Under exact pulls groups may come early: they wait aside."""
    trainer = Trainer(tmp_path, "one_step_off_policy", [2, 0, 3])
    first = trainer.starts()
    with pytest.raises(TimeoutError):
        first.next(1)
    trainer.buffer.groups = [group(1, (0.0, 1.0))]
    trainer.buffered = [100, 101, 102, 103]
    second = trainer.goes_on(counted=0)
    assert leases(second.next(1)) == [0, 1]
    second.settle()
    trainer.ended, trainer.buffered = {100, 101}, [102, 103]
    third = trainer.goes_on(counted=1)
    assert leases(third.next(1)) == [0, 1]
    assert leases(third.next(2)) == [2, 3]
    assert trainer.refused == {}


def test_groups_that_are_nowhere_are_leased_again(tmp_path):
    trainer = Trainer(tmp_path, "asynchronous", [0, 1, 2, 3])
    first = trainer.starts()
    first.next(1)
    first.settle()
    trainer.ended, trainer.buffered = {100, 101}, [102, 103, 104]
    second = trainer.goes_on(counted=1)
    second.next(1)
    assert leases(second.next(2)) == [2, 3]
    assert trainer.refused == {LOST_IN_BUFFER: (104,)}


def test_uses_of_groups_are_counted_on(tmp_path):
    """A group that two steps may train on, and one has, is trained on once more."""
    trainer = Trainer(tmp_path, "asynchronous", [0, 1, 0, 1, 2, 3], times_sampled=2)
    first = trainer.starts()
    assert first.next(1).kept == [100, 101]
    first.settle()
    second = trainer.goes_on(counted=1)
    second.next(1)
    again = second.next(2)
    assert (leases(again), again.kept) == ([0, 1], [])


def test_a_logged_batch_that_is_damaged_ends_the_trainer_with_one_line(tmp_path):
    trainer = Trainer(tmp_path, "asynchronous", [0, 1])
    first = trainer.starts()
    first.next(1)
    first.settle()
    second = trainer.goes_on(counted=1)
    (tmp_path / "batch_00000001").write_bytes(b"")
    with pytest.raises(RunEndedError, match="batch of trainer step 1 is gone, or damaged"):
        second.next(1)


def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path, monkeypatch, caplog):
    trainer = Trainer(tmp_path, "asynchronous", [0, 1, 2, 3])
    first = trainer.starts()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BatchLog, "_write", full)
    with caplog.at_level(logging.WARNING):
        assert leases(first.next(1)) == [0, 1]
        first.settle()
        assert leases(first.next(2)) == [2, 3]
        first.settle()
    assert caplog.text.count("Batches cannot be logged any more") == 1
