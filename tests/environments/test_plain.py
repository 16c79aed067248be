"""Plain data of environments, as bytes that are read without running anything."""

from __future__ import annotations

import enum
import fractions
import os
import pickle

import numpy as np
import pytest

from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.hosts.plain_data import Closed, pack, plain, unpack
from rl_sync.environments.interface import Message, Outcome, ToolCall, Turn


class Color(enum.StrEnum):
    RED = "red"


CALL = ToolCall("f", {"x": [1, 2.5, None, {"y": (True, b"z")}]}, "c")
RECORDS = [
    Turn((Message("assistant", "a", tool_calls=(CALL,)),), stop_strings=("\n",), reward=0.5),
    Outcome({"a": 1.0}, metrics={"n": 3}, reason="turns"),
    Failure("why", "died"),
    Closed("", is_worn=True),
]


@pytest.mark.parametrize("record", RECORDS)
def test_records_survive_the_way(record):
    assert unpack(pack(plain(record, "x"))) == record


def test_values_that_are_nearly_plain_become_plain():
    given = [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a"), Color.RED, True]
    found = plain([*given, fractions.Fraction(1, 2)], "x")
    assert found == [0.5, 3, True, "a", "red", True, 0.5]
    assert [type(one) for one in found] == [float, int, bool, str, str, bool, float]


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


class Harmful:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (self.file,)


def test_reading_runs_nothing_of_the_sender(tmp_path):
    file = tmp_path / "made"
    with pytest.raises(ValueError, match="mkdir is no record of environments"):
        unpack(pickle.dumps(Failure(Harmful(str(file)), "died")))
    assert not file.exists()
    for data in (b"", b"abc", pickle.dumps(3), pickle.dumps(Message("user", "a"))):
        with pytest.raises(ValueError, match="no record"):
            unpack(data)
