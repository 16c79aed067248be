"""Delivery of groups: judged and inserted, at once or beside the generation of others."""

import collections
import contextlib
import math
import threading
import time
import types

import numpy as np
import pytest

from rl_sync.cluster.pending import Await, Pending
from rl_sync.cluster.session import RunStoppedError
from rl_sync.ending import Ending, Fault
from rl_sync.messages.events import GroupsBuffered
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.scoring_calls import ScoredCompletion, Scores
from rl_sync.replay.replay_interface import ReplayUnavailableError
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.master.group_admission import score_columns
from rl_sync.scoring.score_requests import begun_of, last_replies
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Prompt
from tests.cluster.memory_session import MemorySession

TOKENIZER = CharacterTokenizer("12=")
TASK = types.SimpleNamespace(
    tokenizer=TOKENIZER,
    train=collections.defaultdict(lambda: Prompt(0, "1=", "1")),
)
(END,) = TOKENIZER.eos_ids


class Group(types.SimpleNamespace):
    """Two completions after a prompt; the second one was cut at the limit."""

    def __init__(self, lease_id):
        super().__init__(
            lease_id=lease_id,
            endings=None,
            parts=None,
            prompt_id=lease_id + 100,
            tokens=np.array([[4, 2, END, 0], [4, 2, 3, 2]]),
            completion_mask=np.array([[0, 1, 1, 0], [0, 1, 1, 1]], bool),
            rewards=np.zeros(2),
            truncated=np.array([False, True]),
        )

    def to_columns(self):
        return {"n": self.lease_id} if self.parts is None else {"parts": self.parts.tolist()}


class Session(MemorySession):
    """A session whose master answers from a list of verdicts."""

    def __init__(self, scores, unwanted=(), wait_secs=5.0):
        super().__init__(
            self.answered,
            role="explorer1",
            launch__wait_secs=wait_secs,
            reward__limit_secs=0.1,
            replay__priority="reward",
            replay__sampler="max_heap",
            sync__mode="asynchronous",
            sync__max_staleness=1,
            trainer__groups_per_step=1,
            optimizer__updates_per_batch=1,
        )
        self.scores, self.unwanted, self.items = list(scores), unwanted, {}
        self.pending, self.has_parts = 0, False

    def answered(self, call):
        if not isinstance(call, Await):
            return None
        if call.call is not None:
            self.items[call.key] = call.call.items
        if self.pending:
            self.pending -= 1
            time.sleep(0.05)
            return Pending(0)
        items = self.items[call.key]
        scores = [self.scores.pop(0) for _ in items]
        verdicts = [
            ScoredCompletion(score, score == 1.0, (score or 0.0, 0.5) if self.has_parts else ())
            for score in scores
        ]
        leases = {item.lease_id for item in items}
        return Scores(verdicts, [lease for lease in leases if lease not in self.unwanted])


class Replay:
    def __init__(self, may_restart=False):
        self.inserted, self.may_restart, self.breaks = [], may_restart, 0

    def insert_many(self, table, items, **named):
        self.inserted.append((table, items, named))


def rewarded(group, rewards, parts):
    new = Group(group.lease_id)
    new.parts = parts
    known = ~np.isnan(rewards)
    new.rewards, new.endings = np.where(known, rewards, 0), group.endings
    new.completion_mask = group.completion_mask & known[:, None]
    return new


def delivery(session, beside=False, in_parts=False, may_restart=False):
    explorer = types.SimpleNamespace(rewarded=rewarded, in_parts=in_parts)
    replay = Replay(may_restart)
    return GroupDelivery(session, TASK, explorer, replay, table="groups", beside=beside)


@pytest.mark.parametrize("unwanted", [(), (7,)])
def test_groups_are_judged_and_those_that_the_master_does_not_want_are_left_out(unwanted):
    session = Session([1.0, 1.0, 0.0, 1.0], unwanted)
    one = delivery(session)
    one.deliver([Group(7), Group(8)])
    ((table, items, named),) = one._replay.inserted
    wanted = [n for n in (7, 8) if n not in unwanted]
    assert (table, items) == ("groups", [{"n": n} for n in wanted])
    assert named["priorities"] == ([0.5] if unwanted else [1.0, 0.5])
    judge, happened = session.calls
    assert [item.lease_id for item in judge.call.items] == [7, 7, 8, 8]
    assert happened == Happened(GroupsBuffered(tuple(wanted)))
    assert session.facts["reward"] == 0.75


def test_a_group_has_the_scores_of_its_completions_by_each_part():
    session = Session([1.0, 0.0, 0.25, None])
    session.has_parts = True
    one = delivery(session)
    one.deliver([Group(7), Group(8)])
    ((_, items, _),) = one._replay.inserted
    np.testing.assert_equal(
        [item["parts"] for item in items],
        [[[1.0, 0.5], [0.0, 0.5]], [[0.25, 0.5], [np.nan, np.nan]]],
    )


def test_the_ends_of_episodes_are_handed_in_with_them():
    session = Session([1.0, None])
    fine = Ending({"won": 1.0}, {}, "done", "", 1)
    lost = Ending({}, {}, "time-out", "too late", 0, faults=(Fault("time-out", "too late"),))
    group = Group(7)
    group.endings = (fine, lost)
    delivery(session).deliver([group])
    ((first, second),) = session.items.values()
    assert (first.ending, second.ending) == (fine, lost)


@pytest.mark.parametrize(
    ("scores", "mean"), [([1.0, None, 0.5, None], 0.75), ([None, None, None, None], None)]
)
def test_the_reward_that_an_explorer_shows_is_of_what_was_judged(scores, mean):
    session = Session(scores)
    delivery(session).deliver([Group(7), Group(8)])
    assert session.facts["reward"] == mean


def test_completions_are_handed_in_with_their_tokens_and_whether_they_were_cut_off():
    session = Session([1.0, 1.0])
    delivery(session).deliver([Group(7)])
    ((first, second),) = session.items.values()
    assert (first.prompt_id, first.lease_id, first.held_out) == (107, 7, False)
    assert (first.tokens, second.tokens) == ([2, END], [2, 3, 2])
    assert (first.truncated, second.truncated) == (False, True)
    assert (first.text, second.text) == ("1", "121")


def test_a_reply_that_a_limit_of_its_episode_ended_is_truncated():
    session, group = Session([1.0, 1.0]), Group(7)
    cut = Ending({}, {}, "tokens", "", turns=1, is_cut=True)
    # The episode was cut, but its last reply had ended.
    group.endings, group.truncated = (cut, cut._replace(is_cut=False)), np.array([True, True])
    delivery(session).deliver([group])
    ((first, second),) = session.items.values()
    assert (first.truncated, second.truncated) == (True, False)


def test_a_completion_that_could_not_be_judged_has_no_number():
    session, seen = Session([None, 1.0]), []
    one = delivery(session)
    one._explorer.rewarded = lambda group, rewards, _: seen.append(rewards) or group
    one.deliver([Group(7)])
    assert np.isnan(seen[0]).tolist() == [True, False]


def test_a_thread_judges_while_the_caller_goes_on():
    session = Session([1.0] * 4)
    session.pending = 4
    one = delivery(session, beside=True)
    start = time.monotonic()
    one.deliver([Group(7)])
    one.deliver([Group(8)])
    assert time.monotonic() - start < 0.15
    deadline = time.monotonic() + 10
    while len(one._replay.inserted) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [items for _, items, _ in one._replay.inserted] == [[{"n": 7}], [{"n": 8}]]
    one.close()


def test_rollouts_wait_once_too_many_are_to_be_judged():
    session = Session([1.0] * 20)
    session.pending = 40
    one = delivery(session, beside=True)
    start = time.monotonic()
    for number in range(5):
        one.deliver([Group(number)])
    assert time.monotonic() - start > 0.3
    one.close()


def test_the_groups_of_several_rollouts_are_judged_at_once_and_inserted_in_their_order():
    """The first rollout's judgements come last."""
    session, one = Session([]), None
    held, judged = threading.Event(), []

    def score(groups):
        if groups[0].lease_id == 0:
            assert held.wait(10)
        judged.append(groups[0].lease_id)
        return groups

    one = delivery(session, beside=True)
    one._judge = score
    for number in range(3):
        one.deliver([Group(number)])
    deadline = time.monotonic() + 10
    while len(judged) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(judged) == [1, 2]
    assert one._replay.inserted == []
    held.set()
    while len(one._replay.inserted) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [items[0]["n"] for _, items, _ in one._replay.inserted] == [0, 1, 2]
    one.close()


def test_streamed_groups_are_inserted_when_they_are_judged_whatever_their_order():
    session = Session([])
    held, waits = threading.Event(), []

    @contextlib.contextmanager
    def span(kind, **attributes):
        waits.append(attributes.get("reason"))
        yield attributes

    session.spans.span = span
    one = delivery(session, beside=True, in_parts=True)
    one._judge = lambda groups: (groups[0].lease_id == 1 or held.wait(10)) and groups
    one.deliver([Group(0), Group(1)])
    await_inserted(one, 1)
    assert one._replay.inserted[0][1] == [{"n": 1}]
    while not one._room.acquire(timeout=1):  # It is released after the insertion.
        pass
    one._room.release()
    one.deliver([Group(2)])
    assert "judgements" not in waits
    threading.Timer(0.1, held.set).start()
    one.deliver([Group(3)])
    assert "judgements" in waits, "more groups than may be ahead of the trainer are judged at once"
    await_inserted(one, 4)
    one.close()


def await_inserted(one, count):
    deadline = time.monotonic() + 10
    while len(one._replay.inserted) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(one._replay.inserted) == count


def test_a_fault_of_the_thread_reaches_the_caller():
    session = Session([1.0] * 2)
    one = delivery(session, beside=True)
    one._replay.insert_many = lambda *_, **__: 1 / 0
    one.deliver([Group(7)])
    one._thread.join(timeout=10)
    with pytest.raises(ZeroDivisionError):
        one.check()


def test_who_waits_for_verdicts_is_told_of_a_stop_and_of_judging_that_stands_still():
    session = Session([1.0] * 2)
    session.pending = 10**6
    session.stop()
    with pytest.raises(RunStoppedError):
        delivery(session).deliver([Group(7)])
    session = Session([1.0] * 2, wait_secs=0.3)
    session.pending = 10**6
    with pytest.raises(TimeoutError, match="waits for completions to be judged"):
        delivery(session).deliver([Group(7)])


def test_the_last_reply_of_each_row_is_its_last_run_of_learned_tokens():
    mask = np.array([[0, 1, 1, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0]], bool)
    group = types.SimpleNamespace(tokens=np.arange(20).reshape(4, 5), completion_mask=mask)
    assert [ids for _, ids in last_replies(group)] == [[4], [6, 7], [], [17, 18]]
    assert [before for before, _ in last_replies(group)] == [[0, 1, 2, 3], [5], [], [15, 16]]


@pytest.mark.parametrize(
    ("prompt", "last", "turns", "begun"),
    [
        ("1+1?\n<think>\n", None, 1, "<think>\n"),
        ("1+1?\n", None, 1, ""),
        ("<think>1</think>\n", None, 1, ""),
        ("1+1?\n<think>1", {"role": "assistant", "content": "<think>1"}, 1, "<think>1"),
        ("1+1?\n<think>", {"role": "assistant", "content": "1"}, 2, "<think>"),
        ("1+1?\n<think>", {"role": "user", "content": "1+1?"}, 1, "<think>"),
    ],
)
def test_what_the_prompt_has_written_of_a_reply_is_handed_in(prompt, last, turns, begun):
    tokenizer = CharacterTokenizer.of_texts(["1+?\n</think>"])
    row = None if last is None else {"prompt_messages": [{"role": "user", "content": "?"}, last]}
    ending, before = Ending({}, {}, "done", "", turns=turns), tokenizer.encode("?" * 50 + prompt)
    assert begun_of(tokenizer, before, Prompt(0, "1+1?", "2", row), ending) == begun


def test_the_last_groups_are_inserted_again_once_the_replay_server_was_started_again():
    one = delivery(Session([1.0] * 8), may_restart=True)
    room = one._session.settings.groups_ahead
    for lease_id in range(room + 1):
        one._last.append(Group(lease_id))
    failures = [ReplayUnavailableError("not back yet")]
    insert = one._replay.insert_many

    def insert_many(*arguments, **named):
        if failures:
            raise failures.pop()
        insert(*arguments, **named)

    one._replay.insert_many = insert_many
    one._replay.breaks = 1
    deadline = time.monotonic() + 20
    while not one._replay.inserted and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    assert [items for _, items, _ in one._replay.inserted] == [
        [{"n": lease_id} for lease_id in range(1, room + 1)]
    ]
    one.close()


def test_an_insertion_waits_for_a_replay_server_that_may_be_started_again():
    one = delivery(Session([1.0] * 2), may_restart=True)
    failures = [ReplayUnavailableError("it has ended")]
    insert = one._replay.insert_many

    def insert_many(*arguments, **named):
        if failures:
            raise failures.pop()
        insert(*arguments, **named)

    one._replay.insert_many = insert_many
    one.deliver([Group(3)])
    assert [items for _, items, _ in one._replay.inserted] == [[{"n": 3}]]
    one.close()


def test_a_part_that_gives_some_completions_no_score_moves_no_advantage_of_theirs():
    nan = math.nan
    verdicts = [
        ScoredCompletion(1.5, True, (1.0, 0.5, nan)),
        ScoredCompletion(1.0, True, (1.0, nan, nan)),
        ScoredCompletion(None, False, (nan, nan, nan)),
        ScoredCompletion(0.25, False, (0.0, 0.25, nan)),
    ]
    rewards, parts = score_columns(verdicts)
    np.testing.assert_array_equal(rewards, np.float32([1.5, 1.0, nan, 0.25]))
    np.testing.assert_array_equal(
        parts, np.float32([[1, 0.5, 0], [1, 0.375, 0], [nan, nan, nan], [0, 0.25, 0]])
    )
