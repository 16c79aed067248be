"""Calls of a model run in the order of their numbers."""

import http

import pytest

from rl_sync.addons.tinker import call_order
from rl_sync.addons.tinker.call_order import CallOrder
from rl_sync.addons.tinker.tinker_calls import CallPlace, CallRefusedError


def accepted(order, *numbers, model="m"):
    return [order.accept(CallPlace(model, n), f"call {n}", lambda n=n: {"n": n}) for n in numbers]


def done(order):
    """Does all calls whose turn has come; returns their numbers."""
    found = []
    while (call := order.next(0.0)) is not None:
        call.result.set_result(call.act())
        found.append(call.place.seq_id)
    return found


def test_calls_that_come_early_wait_for_those_before_them():
    order = CallOrder()
    order.open("m")
    accepted(order, 2, 3)
    assert done(order) == []
    accepted(order, 1)
    assert done(order) == [1, 2, 3]


def test_models_do_not_wait_for_each_other():
    order = CallOrder()
    order.open("m")
    order.open("n")
    accepted(order, 2)
    accepted(order, 1, model="n")
    assert done(order) == [1]


def test_a_call_that_comes_again_is_done_once():
    order = CallOrder()
    order.open("m")
    (first,) = accepted(order, 1)
    assert done(order) == [1]
    assert accepted(order, 1) == [first]
    assert done(order) == []
    assert order.result(first).result(0) == {"n": 1}


def test_calls_after_a_gap_fail_at_the_deadline_and_later_ones_go_on():
    order = CallOrder(gap_secs=0.0)
    order.open("m")
    (late,) = accepted(order, 3)
    assert done(order) == []
    with pytest.raises(CallRefusedError, match=r"number 3 .* number 1 has not come for 0 s"):
        order.result(late).result(0)
    accepted(order, 4)
    assert done(order) == [4]


def test_calls_of_a_model_that_is_closed_fail():
    order = CallOrder()
    order.open("m")
    names = accepted(order, 1, 3)
    order.close("m")
    for name in names:
        with pytest.raises(CallRefusedError, match="The model m is closed"):
            order.result(name).result(0)
    with pytest.raises(CallRefusedError, match="There is no model m") as raised:
        accepted(order, 4)
    assert raised.value.status == http.HTTPStatus.NOT_FOUND
    assert done(order) == []


def test_calls_beyond_the_bound_are_told_to_wait_and_old_results_are_dropped(monkeypatch):
    monkeypatch.setattr(call_order, "_MOST_WAITING", 2)
    monkeypatch.setattr(call_order, "MOST_CALLS", 3)
    order = CallOrder()
    order.open("m")
    (first, _) = accepted(order, 1, 2)
    with pytest.raises(CallRefusedError, match="2 calls wait") as raised:
        accepted(order, 3)
    assert raised.value.status == http.HTTPStatus.TOO_MANY_REQUESTS
    assert done(order) == [1, 2]
    accepted(order, 3, 4)
    with pytest.raises(CallRefusedError, match="the result was dropped") as raised:
        order.result(first)
    assert raised.value.status == http.HTTPStatus.GONE


def test_nobody_waits_for_calls_of_a_server_that_has_ended():
    order = CallOrder()
    order.open("m")
    (first,) = accepted(order, 1)
    assert done(order) == [1]
    (second,) = accepted(order, 3)
    order.end()
    assert order.result(first).result(0) == {"n": 1}
    with pytest.raises(CallRefusedError, match="The server has ended"):
        order.result(second).result(0)
