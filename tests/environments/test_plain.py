"""Plain data of environments: what becomes it, what is refused, and its way between processes."""

from __future__ import annotations

import enum
import fractions

import numpy as np
import pytest

from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.hosts.plain_data import plain
from rl_sync.environments.interface import Message, Outcome, ToolCall, Turn
from rl_sync.isolation.codec import decode, encode


class Color(enum.StrEnum):
    RED = "red"


CALL = ToolCall("f", {"x": [1, 2.5, None, {"y": (True, b"z")}]}, "c")
RECORDS = [
    Turn((Message("assistant", "a", tool_calls=(CALL,)),), stop_strings=("\n",), reward=0.5),
    Outcome({"a": 1.0}, metrics={"n": 3}, reason="turns"),
    Failure("why", "died"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_records_survive_the_way(record):
    assert decode(encode(plain(record, "x"))) == record


def test_values_that_are_nearly_plain_become_plain():
    given = [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a"), Color.RED, True]
    found = plain([*given, fractions.Fraction(1, 2)], "x")
    assert found == [0.5, 3, True, "a", "red", True, 0.5]
    assert [type(one) for one in found] == [float, int, bool, str, str, bool, float]


def test_a_reward_may_be_an_array_with_one_entry():
    found = plain([Outcome({"a": np.array([1.0])}), Turn((), reward=np.array([[0.5]]))], "x")
    assert (found[0].rewards, found[1].reward) == ({"a": 1.0}, 0.5)
    assert type(found[0].rewards["a"]) is type(found[1].reward) is float
    with pytest.raises(ValueError, match=r"x\.rewards\['a'\] is a ndarray"):
        plain(Outcome({"a": np.zeros(2)}), "x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Outcome({"a": 1.0}, metrics={"b": {1}}), r"x.metrics\['b'\] is a set, not plain data"),
        ((1, [object()]), r"x\[1\]\[0\] is a object"),
        ({3: "a"}, "x has the key 3; keys must be text"),
        (np.zeros(2), "x is a ndarray"),
        (complex(1), "x is a complex"),
    ],
)
def test_other_values_are_refused_by_their_place(value, message):
    with pytest.raises(ValueError, match=message):
        plain(value, "x")
