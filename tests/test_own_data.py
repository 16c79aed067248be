"""The benchmark on small data of one's own: its rows are right, and its table counts them."""

import importlib.util
import itertools
import re
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "own_data.py"
_SPEC = importlib.util.spec_from_file_location("own_data", _PATH)
own_data = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(own_data)

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def _of_numeral(text):
    values = [_VALUES[one] for one in text]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def _of_clock(text):
    return datetime.strptime(text.upper(), "%I:%M %p").strftime("%H:%M")


INVERSES = {
    "roman": lambda answer: str(_of_numeral(answer)),
    "reverse": lambda answer: "".join(reversed(answer)),
    "reverse_long": lambda answer: "".join(reversed(answer)),
    "next_day": lambda answer: str(date.fromisoformat(answer) - timedelta(days=1)),
    "clock": _of_clock,
    "binary": lambda answer: f"{int(answer, 8):b}".zfill(15),
}


@pytest.mark.gate
@pytest.mark.parametrize("name", own_data.TASKS)
def test_rows_are_as_many_as_said_and_none_is_in_both_parts(name):
    train, held_out = own_data.rows_of(name, 5)
    assert len(train) == own_data.TASKS[name].rows
    assert 290 <= len(held_out) <= own_data.HELD_OUT
    assert not dict(train).keys() & dict(held_out).keys()
    assert own_data.rows_of(name, 5) == (train, held_out) != own_data.rows_of(name, 6)


@pytest.mark.parametrize("name", INVERSES)
def test_answers_lead_back_to_their_prompts(name):
    for prompt, answer in own_data.rows_of(name, 3)[0][:300]:
        assert INVERSES[name](answer) == prompt


def test_answers_are_right():
    found = {name: dict(itertools.chain(*own_data.rows_of(name, 1))) for name in own_data.TASKS}
    assert found["sort"] == {word: "".join(sorted(word)) for word in found["sort"]}
    assert found["vowels"] == {
        word: str(len(re.findall("[aeiou]", word))) for word in found["vowels"]
    }
    words = found["number_words"]
    assert words["two thousand two hundred thirty five"] == "2235"
    assert {words[one] for one in words if one.endswith("hundred")} <= {f"{n}00" for n in range(30)}
    monday = date(2024, 1, 1)
    for prompt, answer in found["weekday"].items():
        day, days = prompt.split("+")
        first = next(i for i in range(7) if f"{monday + timedelta(i):%a}" == day)
        assert f"{monday + timedelta(first + int(days)):%a}" == answer
    assert found["units"]["127 h in min"] == "7620"


def test_the_table_has_the_least_the_median_and_the_greatest_of_each_task():
    lines = [
        {"task": "sort", "rows": 2000, "groups": 64, "accuracy": [before, 0.1, after]}
        for before, after in ((0.4, 0.5), (0.5, 0.45), (0.45, 0.6))
    ]
    assert list(own_data.table(lines))[2:] == [
        "| sort | 2000 | 64 | 3 | 40.0 / 45.0 / 50.0 | 45.0 / 50.0 / 60.0 | -5.0 / +10.0 / +15.0 |"
    ]
