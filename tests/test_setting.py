"""A setting's bounds and choices are checked where they are described."""

import dataclasses
import math

import pytest

from rl_sync.setting import check, described, section, setting


@dataclasses.dataclass(frozen=True)
class Pace:
    steps: int = setting(3, "Steps of the run.", least=1)
    share: float = setting(0.5, "The share kept.", above=0, greatest=1.0)
    secs: float | None = setting(None, "The longest wait.", unit="seconds", above=0, below=9.5)
    kind: str = setting("slow", "The way to walk.", choices=("slow", "fast"))


@dataclasses.dataclass(frozen=True)
class Walk:
    pace: Pace = section(Pace, "How fast.")
    name: str = "walk"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "pace.steps=0 must be at least 1."),
        ({"share": 0.0}, "pace.share=0 must be above 0 and at most 1."),
        ({"share": math.nan}, "pace.share=nan must be above 0 and at most 1."),
        ({"secs": 9.5}, "pace.secs=9.5 must be above 0 and below 9.5 seconds."),
        ({"kind": "fats"}, "pace.kind='fats' is not one of slow, fast; did you mean 'fast'?"),
    ],
)
def test_a_value_outside_its_bounds_is_named_with_them(changes, message):
    with pytest.raises(ValueError, match=r"^pace") as error:
        check(Pace(**changes), "pace")
    assert str(error.value) == message


def test_bounds_that_a_value_may_have_are_no_mistake():
    check(Pace(steps=1, share=1.0, secs=9.4), "pace")
    check(Pace(), "pace")


def test_a_section_in_another_has_its_own_defaults():
    assert Walk().pace == Pace()
    assert [described(field) is None for field in dataclasses.fields(Walk)] == [False, True]
