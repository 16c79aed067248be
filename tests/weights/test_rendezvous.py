"""The meeting point: a grant and a withdrawal never both succeed."""

from __future__ import annotations

import threading

import pytest

from rl_sync.messages.weight_calls import Grant, Request
from rl_sync.weights.rendezvous import MeetingPoint


def test_a_request_is_seen_granted_and_answered():
    meeting, answers = MeetingPoint(), []

    def explore():
        answers.append(meeting.granted(meeting.ask(2, 3, None), 10))

    explorer = threading.Thread(target=explore)
    explorer.start()
    (request,) = meeting.waiting(10)
    assert request == Request(2, 1, 3, None)
    assert meeting.grant(request, 3, "abc")
    explorer.join(10)
    assert answers == [Grant(3, "abc")]
    assert meeting.waiting(0) == []


def test_a_withdrawn_request_cannot_be_granted():
    meeting = MeetingPoint()
    ticket = meeting.ask(1, None, 4)
    (request,) = meeting.waiting(0)
    assert meeting.withdraw(ticket) is None
    assert not meeting.grant(request, 4, "abc")


def test_a_withdrawal_that_comes_after_the_grant_returns_the_grant():
    meeting = MeetingPoint()
    ticket = meeting.ask(1, None, None)
    assert meeting.grant(meeting.waiting(0)[0], 0, "abc")
    assert meeting.withdraw(ticket) == Grant(0, "abc")


def test_a_new_request_takes_the_place_of_the_explorers_old_one():
    meeting = MeetingPoint()
    meeting.ask(1, 5, None)
    (old,) = meeting.waiting(0)
    meeting.ask(2, 7, None)
    meeting.ask(1, 6, None)
    assert [(r.explorer, r.exactly) for r in meeting.waiting(0)] == [(2, 7), (1, 6)]
    assert not meeting.grant(old, 5, "abc")


def test_a_request_accepts_what_it_asked_for():
    assert [Request(1, 1, 3, None).accepts(v) for v in (2, 3, 4)] == [False, True, False]
    assert [Request(1, 1, None, 3).accepts(v) for v in (2, 3, 4)] == [False, True, True]
    assert Request(1, 1, None, None).accepts(0)


def test_asking_for_one_and_for_the_newest_at_once_is_refused():
    with pytest.raises(ValueError, match=r"exactly=1.*at_least=2"):
        MeetingPoint().ask(1, 1, 2)


def test_every_call_may_come_again_and_gets_the_same_answer():
    meeting = MeetingPoint()
    ticket = meeting.ask(1, 5, None, number=7)
    assert meeting.ask(1, 5, None, number=7) == ticket
    (request,) = meeting.waiting(0)
    assert meeting.grant(request, 5, "abc")
    meeting = MeetingPoint(meeting.content())
    assert meeting.grant(request, 5, "abc")
    assert meeting.granted(ticket, 0) == meeting.granted(ticket, 0) == Grant(5, "abc")
    assert meeting.withdraw(ticket) == Grant(5, "abc")
    later = meeting.ask(1, 6, None, number=8)
    assert later > ticket
    assert meeting.granted(ticket, 0) is None, "grants pile up"


def test_who_died_is_granted_nothing():
    point = MeetingPoint()
    first, second = point.ask(1, None, 0, 1), point.ask(2, None, 0, 1)
    (asked, other) = point.waiting(0.0)
    assert point.grant(asked, 3, "digest")
    point.leave(1)
    assert point.granted(first, 0.0) is None
    point.leave(2)
    assert not point.grant(other, 3, "digest")
    assert point.waiting(0.0) == []
    assert point.granted(second, 0.0) is None
