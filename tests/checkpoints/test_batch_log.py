"""The log of batches: what is written is read again, and what is damaged is not."""

import errno
import os

import numpy as np
import pytest

from rl_sync.checkpoints.batch_log import BatchLog, LoggedBatch
from rl_sync.types import Consumed, Group


def group(lease_id, length=3, **columns):
    shape = (2, length)
    return Group(
        lease_id=lease_id,
        ordinal=lease_id,
        prompt_id=0,
        explorer=1,
        tokens=np.arange(2 * length, dtype=np.int32).reshape(shape),
        completion_mask=np.ones(shape, bool),
        behavior_logprobs=np.full(shape, -0.5, np.float32),
        policy_versions=np.full(shape, lease_id, np.int32),
        rewards=np.array([0.25, 1.0], np.float32),
        **columns,
    )


def batch(*leases, aside=(), uses=None, **fields):
    consumed = Consumed([group(lease) for lease in leases], **{"left_out": [], **fields})
    return LoggedBatch(consumed, [group(lease) for lease in aside], uses or {})


def leases(groups):
    return [one.lease_id for one in groups]


def files(directory):
    return sorted(os.listdir(directory))


def test_a_batch_is_read_as_it_was_written(tmp_path):
    rich = group(
        7,
        length=5,
        turn_rewards=np.full((2, 5), 0.5, np.float32),
        segments=np.zeros((2, 5), np.int32),
        truncated=np.array([True, False]),
        sampling_masks=np.zeros((2, 1, 3), np.uint32),
        routes=np.full((2, 3, 2, 1), 65535, np.uint16),
    )
    consumed = Consumed([rich, group(8)], left_out=[9], kept=[8], notes={"pipeline/x": 0.125})
    BatchLog(tmp_path).write(3, LoggedBatch(consumed, [group(11)], {8: 1}))
    found = BatchLog(tmp_path).read(3)
    assert (found.batch.left_out, found.batch.kept) == ([9], [8])
    assert (found.batch.notes, found.uses) == ({"pipeline/x": 0.125}, {8: 1})
    assert leases(found.aside) == [11]
    for before, after in zip(consumed.groups, found.batch.groups, strict=True):
        columns = after.to_columns()
        assert columns.keys() == before.to_columns().keys()
        for name, column in before.to_columns().items():
            assert columns[name].dtype == column.dtype
            np.testing.assert_array_equal(columns[name], column)


def test_a_row_of_batches_ends_at_the_first_that_is_missing_or_damaged(tmp_path):
    log = BatchLog(tmp_path)
    for step in (4, 5, 6, 8):
        log.write(step, batch(step))
    assert [log.reach(start) for start in (2, 3, 5, 6, 7)] == [2, 6, 6, 6, 8]
    path = tmp_path / "batch_00000005"
    path.write_bytes(path.read_bytes()[:-1])
    assert (log.reach(3), log.read(5)) == (4, None)
    content = bytearray((tmp_path / "batch_00000004").read_bytes())
    content[20] ^= 1
    (tmp_path / "batch_00000004").write_bytes(content)
    assert log.reach(3) == 3


def test_groups_that_were_taken_are_kept_until_their_batch_is_written(tmp_path):
    log = BatchLog(tmp_path)
    log.write_taken(4, [group(1)])
    log.write_taken(4, [group(2), group(3)])
    assert leases(BatchLog(tmp_path).read_taken(4)) == [1, 2, 3]
    assert BatchLog(tmp_path).read_taken(5) == []
    log.write(4, batch(1, 3, aside=[2]))
    log.write_taken(5, [group(4)])
    assert files(tmp_path) == ["batch_00000004", "taken_00000005_0000"]
    assert leases(log.read(4).aside) == [2]


def test_old_batches_are_forgotten_and_those_that_are_made_anew(tmp_path):
    log = BatchLog(tmp_path)
    for step in range(1, 7):
        log.write(step, batch(step))
    log.write_taken(7, [group(7)])
    log.forget(2)
    log.forget_after(4)
    assert files(tmp_path) == ["batch_00000003", "batch_00000004"]


@pytest.mark.parametrize("write", ["batch", "taken"])
def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch, write):
    log = BatchLog(tmp_path)

    def full(path, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        log.write(1, batch(1)) if write == "batch" else log.write_taken(1, [group(1)])
    assert files(tmp_path) == []


def test_what_a_killed_process_had_not_finished_is_removed(tmp_path):
    (tmp_path / "batch_00000001.tmp").write_bytes(b"half")
    assert BatchLog(tmp_path).reach(0) == 0
    assert files(tmp_path) == []
