"""The trainer's reader, from a replay buffer that is a list."""

import types
from typing import NamedTuple

import numpy as np
import pytest

from rl_sync.cluster.team import Team
from rl_sync.messages.events import LOST_IN_BUFFER, GrantBatch, GroupsRefused
from rl_sync.messages.master_calls import AskBatch, AskBuffered, Buffered, Happened
from rl_sync.replay.replay_interface import ReplayTimeoutError, ReplayUnavailableError
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.schedule import resolve
from rl_sync.types import Group
from tests.cluster.memory_session import MemorySession


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


class Sample(NamedTuple):
    columns: dict


class Several(Team):
    """A team of several processes, of which this one is or follows the first."""

    def __init__(self, agree, leads=True):
        self.agree, self.leads = agree, leads


class Buffer:
    may_restart = False

    def __init__(self, groups):
        self.groups = groups

    def sample(self, table, count, timeout_secs):
        if self.groups and self.groups[0] is None:
            del self.groups[0]
            raise ReplayUnavailableError("it has ended")
        if not self.groups:
            raise ReplayTimeoutError("empty")
        taken, self.groups = self.groups[:count], self.groups[count:]
        return [Sample(group.to_columns()) for group in taken]

    def info(self):
        return {"groups": types.SimpleNamespace(current_size=len(self.groups))}


def reader(mode, groups, *, needed, generated, keep="first", team=None, answer=None, **more):
    def deadline():
        raise TimeoutError("there are no more groups")

    session = MemorySession(
        answer or (lambda call: []),
        trainer__groups_per_step=needed,
        algorithm__over_sampling=generated / needed,
        algorithm__filter_zero_variance=True,
        algorithm__keep=keep,
        optimizer__updates_per_batch=1,
        **more,
    )
    assert session.settings.groups_generated == generated
    turns = iter(range(20))
    session.deadline = lambda *_: lambda: next(turns, None) is not None or deadline()
    session.team = team or session.team
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
        outcome = thunk()
        if not what.startswith("call"):  # A part of a larger agreement.
            said.append(outcome)
        return outcome

    first = reader("asynchronous", ARRIVED, needed=2, generated=4, team=Several(agree))
    assert len(first.next(1).groups) == 2
    assert said == [[], (True, [])]
    heard = iter([[], (False, [17]), (True, [])])
    idle = []
    follows = Several(lambda what, thunk: next(heard), leads=False)
    other = reader("asynchronous", [], needed=2, generated=4, team=follows)
    other._idle = lambda: idle.append(1)
    assert other.next(1) == ([], [], (), {})
    assert len(idle) == 1, "both processes are idle between the same turns"


def test_a_group_that_is_drawn_twice_is_trained_on_once():
    """Explorers insert groups again if the replay server was started again."""
    one = reader("synchronous", [ARRIVED[3], ARRIVED[3], ARRIVED[1]], needed=2, generated=2)
    assert [group.ordinal for group in one.next(1).groups] == [0, 1]


def test_the_reader_waits_for_a_replay_server_that_may_be_started_again():
    one = reader("asynchronous", [None, ARRIVED[0], ARRIVED[2]], needed=2, generated=2)
    with pytest.raises(ReplayUnavailableError):
        one.next(1)
    one._replay.groups.insert(0, None)
    one._replay.may_restart = True
    assert len(one.next(1).groups) == 2


def test_groups_that_the_replay_server_has_lost_are_given_up_and_others_are_not():
    """The trainer waits for the second of its two groups; the server has lost a third one."""
    one = reader("asynchronous", [ARRIVED[0]], needed=2, generated=2)
    one._replay.may_restart, one._audit_secs = True, 0.0
    held, lost = ARRIVED[0].lease_id, ARRIVED[1].lease_id
    told = []

    def answer(call):
        if isinstance(call, AskBuffered):
            return Buffered(0, [held, lost])
        told.append(call)
        return []

    one._session.answer = answer
    with pytest.raises(TimeoutError):
        one.next(1)
    refused = [call.event for call in told if isinstance(call, Happened)]
    assert refused[0] == GroupsRefused((lost,), LOST_IN_BUFFER)


def test_groups_of_a_step_that_is_not_reported_yet_are_not_lost():
    one = reader("asynchronous", [ARRIVED[0], ARRIVED[1]], needed=2, generated=2)
    one._replay.may_restart = True
    one.next(1)
    counted, calls = [0], []
    leases = [ARRIVED[0].lease_id, ARRIVED[1].lease_id]

    def answer(call):
        calls.append(call)
        return Buffered(counted[0], leases) if isinstance(call, AskBuffered) else []

    one._session.answer = answer
    assert one._audit() == []
    counted[0] = 1
    assert one._audit() == leases


STREAMING = {"sync__mode": "asynchronous", "rollout__streaming": True}


def answering(*answers):
    """Returns a function that answers each request for a batch in turn, and the requests."""
    asked, left = [], iter(answers)

    def answer(call):
        assert isinstance(call, AskBatch), "no other call is needed"
        asked.append((call.step, call.at_hand))
        return next(left)

    return answer, asked


def test_where_groups_have_deadlines_the_master_says_which_are_the_batch():
    answer, asked = answering(
        GrantBatch(()), GrantBatch((101, 103)), GrantBatch((104, 100), over=(102,))
    )
    many = reader("asynchronous", ARRIVED, needed=2, generated=2, answer=answer, **STREAMING)
    taken = []
    many._on_taken = lambda step, groups: taken.extend((step, one.ordinal) for one in groups)
    assert [one.ordinal for one in many.next(1).groups] == [1, 3]
    assert [one.ordinal for one in many.next(2).groups] == [4, 0]
    # After the first answer the reader takes whatever is in the buffer: what is due may be last.
    assert asked == [(1, [103, 100]), (1, [103, 100, 102, 101, 104]), (2, [100, 102, 104])]
    assert taken == [(1, 3), (1, 0), (1, 2), (1, 1), (1, 4)], "all are logged before they are used"
    with pytest.raises(TimeoutError):
        many.next(3)
    assert len(asked) == 3, "nothing is asked without groups for a batch"


def test_a_copy_of_a_group_that_was_just_trained_on_is_neither_kept_nor_refused():
    """Its step may not be reported yet: refused, the group would be over before it is counted."""
    first, second = group(0, (0.0, 1.0)), group(1, (0.0, 1.0), version=1)
    answer, asked = answering(GrantBatch((100,)), GrantBatch(()), GrantBatch((101,)))
    buffer = [first, first, second]
    one = reader("asynchronous", buffer, needed=1, generated=1, answer=answer, **STREAMING)
    one._schedule = resolve("asynchronous", max_staleness=0)
    assert [group.lease_id for group in one.next(1).groups] == [100]
    assert [group.lease_id for group in one.next(2).groups] == [101]
    assert asked == [(1, [100]), (2, []), (2, [101])]


def test_a_reader_asks_again_while_it_waits_for_a_group_whose_lease_may_end():
    answer, asked = answering(GrantBatch(()), GrantBatch(()), GrantBatch((103, 100)))
    waiting = reader("asynchronous", ARRIVED[:2], needed=2, generated=2, answer=answer, **STREAMING)
    assert len(waiting.next(1).groups) == 2
    assert asked == [(1, [103, 100])] * 3
