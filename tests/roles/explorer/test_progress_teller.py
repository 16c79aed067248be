"""Tokens in flight are told in parts, each once, and all of them before an explorer leaves."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

from rl_sync.cluster.rpc import PeerLostError
from rl_sync.cluster.session import HandOverError
from rl_sync.messages.events import LeaseGrant
from rl_sync.messages.master_calls import AskLease, TellProgress
from rl_sync.records.spans import SpanKind
from rl_sync.roles.explorer.actor import UnfinishedGroup
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.roles.explorer.progress_teller import ProgressTeller
from rl_sync.rollout.episodes.episode_records import ToldReply, progress_of
from rl_sync.rollout.stats import Stats
from rl_sync.sampling_masks import no_entries
from rl_sync.types import CompletionProgress, Lease, Prompt
from tests.cluster.memory_session import MemorySession
from tests.roles.explorer.test_loop import Delivery, Evaluations, Weights


def tokens(count, finish=None):
    ids = np.arange(count, dtype=np.int32)
    return CompletionProgress(ids, ids / np.float32(8), 0 * ids, no_entries(), finish)


def episode(*replies, attempt=0):
    """Returns an episode of replies: the turn, the number of tokens, and the end of each."""
    said = [ToldReply(turn, None, tokens(count, finish)) for turn, count, finish in replies]
    return progress_of(said, attempt)


def group(lease_id, begun=()):
    lease = Lease(lease_id, lease_id, 0, Prompt(0, "1+1", "2"), begun)
    return UnfinishedGroup(lease, lease_id, None, np.zeros(1, np.int32))


class Explorer:
    """An explorer with the completions that a test gives it, by lease."""

    streams = in_parts = False
    groups = 1

    def __init__(self):
        self.engine, self.rows = self, {}
        self.stats, self.version = Stats(), -1

    def decode(self, count, **rows):
        self.stats += Stats(stretch_tokens=count)
        self.rows |= {int(name[1:]): found for name, found in rows.items()}

    def progress(self, groups):
        return [self.rows.get(one.lease.lease_id, {}) for one in groups]

    def compile(self, params):
        pass


@pytest.fixture
def explorer():
    return Explorer()


@pytest.fixture
def session():
    return MemorySession(lambda call: [], role="explorer1", rollout__progress_tokens=8)


@pytest.fixture
def teller(session, explorer):
    return ProgressTeller(session, explorer, every_tokens=8)


def told(session):
    """Returns what each call has told: lease, row, first token, tokens, and whether it is all."""
    return [
        [(*one[:3], len(one.progress.tokens), one.progress.finish is not None) for one in call.told]
        for call in session.calls
    ]


def settle(teller):
    if teller._call is not None:
        concurrent.futures.wait([teller._call])


def test_new_tokens_are_told_once_every_so_many_tokens(teller, session, explorer):
    groups = [group(3), group(4, begun=((1, tokens(5)), (2, tokens(6, "stop"))))]
    four = {1: tokens(9), 2: tokens(6, "stop")}
    for steps, rows in [
        (7, {0: tokens(4)}),
        (1, {0: tokens(5), 1: tokens(2)}),
        (4, {0: tokens(7)}),
    ]:
        explorer.decode(steps, _3=rows, _4=four)
        teller.tell(groups)
        settle(teller)
    assert told(session) == [[(3, 0, 0, 5, False), (3, 1, 0, 2, False), (4, 1, 5, 4, False)]]
    explorer.decode(4, _3={0: tokens(5, "length"), 1: tokens(4)})
    teller.tell(groups)
    settle(teller)
    assert told(session)[1:] == [[(3, 0, 5, 0, True), (3, 1, 2, 2, False)]]
    explorer.decode(8)
    teller.tell(groups)
    settle(teller)
    assert len(session.calls) == 2, "nothing is new"


def test_new_tokens_of_an_episode_are_told_with_the_ends_of_its_replies(teller, session, explorer):
    groups, first = [group(3)], (b"a", 5, None)
    for replies in [
        [first],
        [(b"a", 5, "stop")],
        [(b"a", 5, "stop"), (b"b", 2, None)],
        [(b"a", 5, "stop"), (b"b", 4, "length"), (b"c", 1, None)],
    ]:
        explorer.decode(8, _3={0: episode(*replies)})
        teller.tell(groups)
        settle(teller)
    assert [one[0][2:4] for one in told(session)] == [(0, 5), (5, 0), (5, 2), (7, 3)]
    marks = [
        [(mark.turn, mark.finish) for mark in call.told[0].progress.replies]
        for call in session.calls
    ]
    assert marks == [
        [(b"a", None)],
        [(b"a", "stop")],
        [(b"a", "stop"), (b"b", None)],
        [(b"b", "length"), (b"c", None)],
    ]


@pytest.mark.parametrize("change", ["attempt", "turn", "fewer tokens"])
def test_an_episode_that_goes_on_otherwise_is_told_from_its_first_token(
    teller, session, explorer, change
):
    begun = episode((b"a", 5, "stop"), (b"b", 2, None))
    groups = [group(3, begun=((0, begun),))]
    now = {
        "attempt": episode((b"a", 5, "stop"), (b"b", 2, "stop"), attempt=1),
        "turn": episode((b"a", 5, "stop"), (b"c", 4, None)),
        "fewer tokens": episode((b"a", 5, "stop")),
    }[change]
    explorer.decode(8, _3={0: begun})
    teller.tell(groups)
    settle(teller)
    assert told(session) == [], "the master has it"
    explorer.decode(8, _3={0: now})
    teller.tell(groups)
    settle(teller)
    ((part,),) = [call.told for call in session.calls]
    assert part.start == 0
    assert (part.progress.replies, part.progress.attempt) == (now.replies, now.attempt)


def test_decoding_never_waits_for_a_call(teller, session, explorer):
    answers = concurrent.futures.Future()
    session.answer = lambda call: answers.result()
    for count in (8, 16, 24):
        explorer.decode(8, _3={0: tokens(count)})
        teller.tell([group(3)])
    answers.set_result([])
    settle(teller)
    teller.tell_all([group(3)])
    assert told(session) == [[(3, 0, 0, 8, False)], [(3, 0, 8, 16, False)]]


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_master_lacks_is_told_from_the_first_token(teller, session, explorer, fails):
    """The master may be another one, which has no tokens, or may not have answered."""

    def lacking(call):
        if fails:
            raise PeerLostError("the master is gone")
        return [3]

    groups = [group(3), group(4)]
    explorer.decode(8, _3={0: tokens(8)}, _4={0: tokens(8)})
    session.answer = lacking
    teller.tell(groups)
    settle(teller)
    session.answer = lambda call: []
    explorer.decode(8, _3={0: tokens(12)}, _4={0: tokens(12)})
    teller.tell(groups)
    settle(teller)
    four = (4, 0, 0, 12, False) if fails else (4, 0, 8, 4, False)
    assert told(session)[1:] == [[(3, 0, 0, 12, False), four]]


def test_all_is_told_before_an_explorer_leaves(session, explorer):
    """It is asked to end in its second chunk, and leaves after it with all tokens told."""

    def rollout(state, leases, newer, beside):
        state = state._replace(unfinished=(group(7),))
        for count in (3, 6, 9):
            explorer.decode(3, _7={0: tokens(count), 1: tokens(2, "stop")})
            if count == 6:
                session.leave()
            newer(state)
        raise AssertionError("it goes on")

    def answer(call):
        if isinstance(call, AskLease):
            return LeaseGrant(1, 3, True, [group(7).lease])
        return []

    explorer.rollout, session.answer = rollout, answer
    loop = ExplorerLoop(
        session,
        number=1,
        explorer=explorer,
        blank=lambda: None,
        puller=Weights(),
        began_secs=lambda: 0.0,
        at_hand=lambda: None,
        sync_kind=SpanKind.SYNC_CHECKPOINT,
        delivery=Delivery(),
        evaluations=Evaluations(),
    )
    loop.puller.pull = lambda **wanted: (3, "params 3")
    with pytest.raises(HandOverError, match="explorer1 was asked to end"):
        loop.run()
    session.calls = [call for call in session.calls if isinstance(call, TellProgress)]
    assert told(session) == [[(7, 0, 0, 6, False), (7, 1, 0, 2, True)]]
