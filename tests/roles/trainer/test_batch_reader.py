"""The trainer's reader, from a replay buffer that is a list."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from rl_sync.algorithms.screening import UNBOUNDED, Screening
from rl_sync.replay.replay_interface import ReplayTimeoutError
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.schedule import resolve
from rl_sync.types import Group


def group(ordinal, rewards, version=0):
    shape = (len(rewards), 2)
    return Group(
        lease_id=100 + ordinal,
        ordinal=ordinal,
        prompt_id=0,
        explorer=1,
        tokens=np.zeros(shape, np.int32),
        completion_mask=np.ones(shape, bool),
        behavior_logprobs=np.zeros(shape, np.float32),
        policy_versions=np.full(shape, version, np.int32),
        rewards=np.array(rewards, np.float32),
    )


class Buffer:
    def __init__(self, groups):
        self.groups = groups

    def sample(self, table, count, timeout_secs):
        if not self.groups:
            raise ReplayTimeoutError("empty")
        taken, self.groups = self.groups[:count], self.groups[count:]
        return [SimpleNamespace(columns=group.to_columns()) for group in taken]


def reader(mode, groups, *, needed, generated, keep="first", **session_fields):
    def deadline():
        raise TimeoutError("there are no more groups")

    settings = SimpleNamespace(
        groups_generated=generated,
        replay=SimpleNamespace(times_sampled=1),
        trainer=SimpleNamespace(groups_per_step=needed),
        algorithm=SimpleNamespace(screening=Screening(True, -UNBOUNDED, UNBOUNDED, 1), keep=keep),
    )
    turns = iter(range(20))
    fields = {
        "settings": settings,
        "leads": True,
        "spans": SimpleNamespace(span=lambda *_, **told: contextlib.nullcontext(told)),
        "deadline": lambda *_: lambda: next(turns, None) is not None or deadline(),
        "call": lambda call: [],
        "agree": lambda what, thunk: thunk(),
    }
    session = SimpleNamespace(**{**fields, **session_fields})
    return BatchReader(session, Buffer(groups), "groups", resolve(mode), lambda: None)


ARRIVED = [
    group(3, (0.0, 1.0)), group(0, (1.0, 1.0)), group(2, (0.0, 0.5)), group(1, (0.5, 1.0)),
    group(4, (0.0, 1.0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "keep", "trained", "left_out"),
    [
        ("synchronous", "first", [1, 2], [100, 103]),
        ("synchronous", "best", [1, 3], [100, 102]),
        ("asynchronous", "first", [3, 2], [100, 101]),
        ("asynchronous", "best", [3, 2], [100, 101]),
    ],
)
def test_a_step_waits_for_all_groups_that_are_generated_for_it_and_chooses(
    mode, keep, trained, left_out
):
    batch = reader(mode, ARRIVED, needed=2, generated=4, keep=keep).next(1)
    assert [one.ordinal for one in batch.groups] == trained
    assert batch.left_out == left_out


def test_without_over_sampling_nothing_is_left_out():
    batch = reader("synchronous", ARRIVED, needed=4, generated=4).next(1)
    assert [one.ordinal for one in batch.groups] == [0, 1, 2, 3]
    assert batch.left_out == []


def test_a_batch_of_which_some_group_does_not_come_is_waited_for():
    with pytest.raises(TimeoutError):
        reader("asynchronous", ARRIVED[:3], needed=2, generated=4).next(1)


def test_the_other_processes_hear_that_a_batch_is_whole_and_not_what_is_in_it():
    said = []

    def agree(what, thunk):
        said.append(thunk())
        return said[-1]

    first = reader("asynchronous", ARRIVED, needed=2, generated=4, agree=agree)
    assert len(first.next(1).groups) == 2
    assert said == [[], (True, [])]
    heard = iter([[], (False, [17]), (True, [])])
    idle = []
    other = reader(
        "asynchronous",
        [],
        needed=2,
        generated=4,
        leads=False,
        agree=lambda what, thunk: next(heard),
    )
    other._idle = lambda: idle.append(1)
    assert other.next(1) == ([], [], (), {})
    assert len(idle) == 1, "both processes are idle between the same turns"
