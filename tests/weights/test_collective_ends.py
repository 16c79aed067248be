"""The two ends of a collective transfer, each with the other side replaced by a stand-in."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from rl_sync.weights.collective import CollectivePublisher, CollectivePuller
from rl_sync.weights.digest import digest
from rl_sync.weights.interface import WeightsMismatchError, WeightsTimeoutError
from rl_sync.weights.rendezvous import Grant, MeetingPoint


def make_params(version: int) -> dict:
    return {"w": jnp.full((3,), version, jnp.float32)}


class Wire:
    """Stands in for a link: records what is sent, and delivers given parameters."""

    def __init__(self, delivered=None) -> None:
        self.sent: list = []
        self.delivered = delivered

    def send(self, params) -> None:
        self.sent.append(float(params["w"][0]))

    def receive(self):
        return self.delivered


def make_publisher(meeting: MeetingPoint, **arguments) -> tuple[CollectivePublisher, Wire]:
    wire = Wire()
    return CollectivePublisher({1: wire, 2: wire}, meeting, **arguments), wire


def test_each_explorer_gets_the_newest_version_held_that_it_can_use():
    meeting = MeetingPoint()
    publisher, wire = make_publisher(meeting, meet=False, keep=2)
    for version in range(3):
        publisher.publish(version, make_params(version))
    first, second = meeting.ask(1, 1, None), meeting.ask(2, None, 1)
    assert publisher.serve_waiting() == [(1, 1), (2, 2)]
    assert wire.sent == [1.0, 2.0]
    assert meeting.granted(first, 0) == Grant(1, digest(make_params(1)))
    assert meeting.granted(second, 0) == Grant(2, digest(make_params(2)))
    assert meeting.newest() == 2


def test_a_trainer_that_serves_does_not_wait_for_those_who_want_what_is_not_there():
    meeting = MeetingPoint()
    publisher, wire = make_publisher(meeting, meet=False)
    publisher.publish(0, make_params(0))
    publisher.publish(1, make_params(1))
    assert publisher.serve_waiting() == []
    meeting.ask(1, 0, None)
    meeting.ask(2, None, 2)
    assert publisher.serve_waiting() == []
    assert publisher.serve_waiting(0.05) == []
    assert wire.sent == []


def test_nothing_is_sent_to_an_explorer_that_has_withdrawn():
    meeting = MeetingPoint()
    publisher, wire = make_publisher(meeting, meet=False)
    publisher.publish(0, make_params(0))
    ticket = meeting.ask(1, None, None)
    waiting = meeting.waiting(0)
    meeting.withdraw(ticket)
    meeting.waiting = lambda timeout_secs: waiting  # the trainer's view is a moment old
    assert publisher.serve_waiting() == []
    assert wire.sent == []


def test_a_trainer_that_meets_names_who_is_missing_and_what_the_others_ask_for():
    meeting, waits = MeetingPoint(), []
    publisher, wire = make_publisher(
        meeting, meet=True, timeout_secs=0.2, on_wait=lambda state: waits.append(state.missing)
    )
    meeting.ask(1, 4, None)
    meeting.ask(2, 3, None)
    with pytest.raises(WeightsTimeoutError) as caught:
        publisher.publish(4, make_params(4))
    assert wire.sent == [4.0]
    assert "for explorer 2 to come for version 4 (1 of 2 came)" in str(caught.value)
    assert "explorer 2 asks for version 3" in str(caught.value)
    assert waits[0] == (1, 2)
    assert waits[-1] == (2,)


def changed(params: dict) -> dict:
    return {"w": params["w"].at[1].add(1.0)}


def test_weights_that_changed_on_the_way_are_refused_with_both_digests():
    meeting, wire = MeetingPoint(), Wire(make_params(7))
    puller = CollectivePuller(wire, 1, meeting)
    meeting.request = lambda explorer, **_: Grant(7, digest(make_params(7)))
    assert puller.pull(exactly=7, timeout_secs=1)[0] == 7
    wire.delivered = changed(make_params(7))
    with pytest.raises(WeightsMismatchError, match="version 7 arrived changed"):
        puller.pull(exactly=7, timeout_secs=1)


def test_weights_are_taken_as_they_come_when_the_digest_is_turned_off():
    meeting = MeetingPoint()
    puller = CollectivePuller(Wire(changed(make_params(7))), 1, meeting, check_digest=False)
    meeting.request = lambda explorer, **_: Grant(7, digest(make_params(7)))
    version, params = puller.pull(exactly=7, timeout_secs=1)
    assert version == 7
    assert digest(params) != digest(make_params(7))


def test_a_trainer_that_does_not_meet_holds_copies_and_one_that_does_holds_nothing():
    meeting = MeetingPoint()
    publisher, wire = make_publisher(meeting, meet=False, keep=3)
    params = make_params(1)
    publisher.publish(1, params)
    params["w"].delete()  # As a train step does that donates it.
    meeting.ask(1, None, None)
    publisher.publish(2, make_params(2))
    assert [held.version for held in publisher._held] == [1, 2]
    meeting.ask(2, 1, None)
    assert publisher.serve_waiting() == [(1, 2), (2, 1)]
    assert wire.sent == [2.0, 1.0]
    meeting.ask(1, 3, None), meeting.ask(2, 3, None)
    meets, _ = make_publisher(meeting, meet=True)
    meets.publish(3, make_params(3))
    assert not meets._held
