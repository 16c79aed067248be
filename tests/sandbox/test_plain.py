"""Plain values as messages."""

import collections
import fractions
import io
import math
import sys

import numpy as np
import pytest

from rl_sync.sandbox.inside import plain
from rl_sync.sandbox.layer import INSIDE

NESTED = [1, (2.5, "é\ud800\n"), {"a": {1, 2}, (1, 2): frozenset("x")}, None, True]


def sent(value):
    stream = io.BytesIO()
    plain.write_message(stream, plain.encode(value))
    stream.seek(0)
    return plain.decode(plain.read_message(stream))


@pytest.mark.parametrize(
    "value",
    [
        *NESTED,
        NESTED,
        -(1 << 53),
        1 << 5000,
        -0.0,
        math.inf,
        complex(1, -2),
        b"\0\xff",
        bytearray(b"x"),
        range(1, 1 << 70, 3),
        fractions.Fraction(1, 3),
        __import__("decimal").Decimal("1.50"),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, int) else "int",
)
def test_a_value_arrives_as_it_was_sent(value):
    arrived = sent(value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_nan_arrives():
    assert math.isnan(sent(math.nan))


def test_objects_of_subclasses_arrive_as_the_plain_type():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    point = collections.namedtuple("point", "x y")(1, 2)
    values = [Always(3), point, collections.Counter("aab"), np.float64(0.5), np.arange(2)]
    arrived = sent(values)
    assert [type(value) for value in arrived] == [int, tuple, dict, float, list]
    assert arrived == [3, (1, 2), {"a": 2, "b": 1}, 0.5, [0, 1]]


def test_an_iterator_arrives_as_an_iterator():
    arrived = sent(n * n for n in range(3))
    assert [next(arrived), *arrived] == [0, 1, 4]


@pytest.mark.parametrize("value", [object(), len, type, ValueError(), [1, object()], np])
def test_other_objects_are_refused(value):
    with pytest.raises(plain.NotPlainError):
        plain.encode(value)


def test_deep_and_endless_values_are_refused(monkeypatch):
    monkeypatch.setattr(plain, "MOST_ITEMS", 10)
    itself = []
    itself.append(itself)
    for value in (itself, iter(int, 1)):
        with pytest.raises(plain.TooLargeError):
            plain.encode(value)


@pytest.mark.parametrize(
    "message",
    [
        ["list", 1],
        ["unknown", 1],
        [[], []],
        ["list"],
        {"a": 1},
        ["int", "zz"],
        ["bytes", "0"],
        ["dict", [[["list", []], 1]]],
        ["set", [["list", []]]],
        ["range", [1, 2, 0]],
        ["range", [1.5]],
        ["complex", [1, 2, 3]],
        ["Decimal", "1e999999"],
        ["Decimal", "x"],
        ["Fraction", "1/0"],
        ["Fraction", 1],
    ],
)
def test_malformed_messages_are_refused(message):
    with pytest.raises(plain.MessageError):
        plain.decode(message)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"9" * 10_000, b"1 2", b"", b"\xff", b'"', b"nul"], ids=lambda t: t[:5]
)
def test_texts_that_are_no_json_are_refused(text):
    stream = io.BytesIO(len(text).to_bytes(4, "big") + text)
    with pytest.raises(plain.MessageError):
        plain.read_message(stream)


def test_a_message_that_is_too_long_is_refused_before_it_is_read():
    with pytest.raises(plain.MessageError, match="4294967295 bytes"):
        plain.read_message(io.BytesIO(b"\xff\xff\xff\xff"), 100)


def test_a_message_that_is_cut_off_is_the_end():
    assert plain.read_message(io.BytesIO(b"\0\0\0\x09[1")) is None
    assert plain.read_message(io.BytesIO(b"\0\0")) is None


def test_the_quick_functions_write_what_json_reads():
    import json

    value = plain.encode(NESTED)
    assert json.loads(plain.to_json(value)) == value
    assert plain.from_json(json.dumps(value)) == value


def test_modules_inside_the_sandbox_import_little():
    code = "import program, examiner, sys; print(*sys.modules)"
    import subprocess

    output = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(INSIDE)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"json", "re", "typing", "ast", "collections"} & set(output)
