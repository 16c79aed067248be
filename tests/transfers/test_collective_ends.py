"""The two ends of a collective transfer, each with the other side replaced by a stand-in."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from rl_sync.cluster.session import RunStoppedError
from rl_sync.messages.weight_calls import (
    AskWaiting,
    AskWeights,
    AwaitGrant,
    Grant,
    GrantWeights,
    Withdraw,
)
from rl_sync.records.spans import sync_kind
from rl_sync.transfers.collective import CollectivePublisher, CollectivePuller
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError
from tests.transfers.sessions import LoneSession, WeightMaster


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


@pytest.fixture
def call():
    return WeightMaster().desk


def make_publisher(call, meet: bool, timeout_secs=60.0) -> tuple[CollectivePublisher, Wire]:
    wire, kind = Wire(), sync_kind("collective")
    publisher = CollectivePublisher(
        LoneSession(call), {1: wire, 2: wire}, kind=kind, meet=meet, timeout_secs=timeout_secs
    )
    return publisher, wire


def test_each_explorer_that_waits_gets_the_newest_version(call):
    publisher, wire = make_publisher(call, meet=False)
    for version in range(3):
        publisher.publish(version, make_params(version))
    tickets = [call(AskWeights(1, 2, None)), call(AskWeights(2, None, 1))]
    publisher.serve()
    assert wire.sent == [2.0, 2.0]
    for ticket in tickets:
        assert call(AwaitGrant(ticket, 0)) == Grant(2, digest(make_params(2)))


def test_a_trainer_that_serves_does_not_wait_for_those_who_want_what_is_not_there(call):
    publisher, wire = make_publisher(call, meet=False)
    publisher.serve()
    publisher.publish(1, make_params(1))
    publisher.serve()
    call(AskWeights(1, 0, None))
    call(AskWeights(2, None, 2))
    publisher.serve()
    assert wire.sent == []


def test_nothing_is_sent_to_an_explorer_that_has_withdrawn(call):
    ticket = call(AskWeights(1, None, None))
    waiting = call(AskWaiting(0))
    call(Withdraw(ticket))

    def late(made):
        return waiting if isinstance(made, AskWaiting) else call(made)

    publisher, wire = make_publisher(late, meet=False)
    publisher.publish(0, make_params(0))
    publisher.serve()
    assert wire.sent == []


def test_a_trainer_that_meets_names_who_is_missing_and_what_the_others_ask_for(call):
    publisher, wire = make_publisher(call, meet=True, timeout_secs=0.2)
    call(AskWeights(1, 4, None))
    call(AskWeights(2, 3, None))
    with pytest.raises(WeightsTimeoutError) as caught:
        publisher.publish(4, make_params(4))
    assert wire.sent == [4.0]
    assert "for explorer 2 to come for version 4 (1 of 2 came)" in str(caught.value)
    assert "explorer 2 asks for version 3" in str(caught.value)


def granting(call, version: int):
    """Answers calls, and grants each explorer a version as soon as it stands ready."""

    def answer(made):
        result = call(made)
        if isinstance(made, AskWeights):
            grant = Grant(version, digest(make_params(version)))
            assert call(GrantWeights(call(AskWaiting(0))[0], grant))
        return result

    return answer


def changed(params: dict) -> dict:
    return {"w": params["w"].at[1].add(1.0)}


def test_weights_that_changed_on_the_way_are_refused_with_both_digests(call):
    wire = Wire(make_params(7))
    puller = CollectivePuller(LoneSession(granting(call, 7)), wire, 1)
    assert puller.pull(exactly=7, timeout_secs=1)[0] == 7
    assert puller.granted_secs
    wire.delivered = changed(make_params(7))
    with pytest.raises(WeightsMismatchError, match="version 7 arrived changed"):
        puller.pull(exactly=7, timeout_secs=1)


def test_weights_are_taken_as_they_come_when_the_digest_is_turned_off(call):
    wire = Wire(changed(make_params(7)))
    puller = CollectivePuller(LoneSession(granting(call, 7)), wire, 1, check_digest=False)
    version, params = puller.pull(exactly=7, timeout_secs=1)
    assert version == 7
    assert digest(params) != digest(make_params(7))


class Stopping(LoneSession):
    def check(self) -> None:
        raise RunStoppedError("enough")


def test_an_explorer_whose_run_is_stopped_withdraws_unless_it_was_granted(call):
    with pytest.raises(RunStoppedError, match="enough"):
        CollectivePuller(Stopping(call), Wire(), 1).pull(exactly=7, timeout_secs=1)
    assert call(AskWaiting(0)) == []
    puller = CollectivePuller(Stopping(granting(call, 7)), Wire(make_params(7)), 1)
    assert puller.pull(exactly=7, timeout_secs=1)[0] == 7


def test_a_grant_that_comes_just_before_an_explorer_gives_up_is_followed(call):
    """The trainer has entered the transfer then, and would wait for the explorer."""

    def late(asked):
        if isinstance(asked, Withdraw):
            (request,) = call(AskWaiting(0))
            assert call(GrantWeights(request, Grant(7, digest(make_params(7)))))
        return None if isinstance(asked, AwaitGrant) else call(asked)

    puller = CollectivePuller(LoneSession(late), Wire(make_params(7)), 1)
    version, params = puller.pull(exactly=7, timeout_secs=0.05)
    assert (version, float(params["w"][0])) == (7, 7.0)


def test_an_explorer_that_nobody_grants_says_what_is_newest_and_leaves_nothing_behind(call):
    make_publisher(call, meet=False)[0].publish(4, make_params(4))
    puller = CollectivePuller(LoneSession(call), Wire(), 1)
    assert puller.newest() == 4
    with pytest.raises(WeightsTimeoutError, match=r"waited 0.1 s for version 5 .* newest is 4"):
        puller.pull(exactly=5, timeout_secs=0.05)
    assert call(AskWaiting(0)) == []


def test_an_explorer_that_nobody_grants_leaves_once_the_trainer_has_finished():
    master = WeightMaster()
    master.phase = "end"
    puller = CollectivePuller(LoneSession(master.desk), Wire(), 1)
    with pytest.raises(RunStoppedError, match="the trainer has finished"):
        puller.pull(at_least=5, timeout_secs=0.05)
    assert master.desk(AskWaiting(0)) == []


def test_a_trainer_that_does_not_meet_holds_a_copy_and_one_that_does_holds_nothing(call):
    publisher, wire = make_publisher(call, meet=False)
    params = make_params(1)
    publisher.publish(1, params)
    params["w"].delete()  # As a train step does that donates it.
    call(AskWeights(1, None, None))
    publisher.serve()
    assert wire.sent == [1.0]
    call(AskWeights(1, 3, None)), call(AskWeights(2, 3, None))
    meets, wire = make_publisher(call, meet=True)
    meets.publish(3, make_params(3))
    assert wire.sent == [3.0, 3.0]
    assert meets._held is None
