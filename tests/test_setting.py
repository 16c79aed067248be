"""A setting's bounds and choices are checked where they are described."""

import dataclasses
import math

import pytest

from rl_sync.setting import check, described, section, sections, setting


@dataclasses.dataclass(frozen=True)
class Pace:
    steps: int = setting(3, "Steps of the run.", least=1)
    share: float = setting(0.5, "The share kept.", above=0, greatest=1.0)
    rows: int = setting(1, "Rows at once.", unit="rows", least=1)
    secs: float | None = setting(
        None, "The longest wait.", unit="seconds", above=0, below=9.5, implied="no end"
    )
    kind: str = setting("slow", "The way to walk.", choices=("slow", "fast"))


@dataclasses.dataclass(frozen=True)
class Walk:
    pace: Pace = section(Pace, "How fast.")
    rest: Pace = section(Pace, "How slow.", implied="as the mood is")
    name: str = "walk"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "pace.steps=0 must be at least 1. Steps of the run."),
        ({"share": 0.0}, "pace.share=0 must be above 0 and at most 1. The share kept."),
        ({"share": math.nan}, "pace.share=nan must be above 0 and at most 1. The share kept."),
        (
            {"secs": 9.5},
            "pace.secs=9.5 must be above 0 and below 9.5 seconds, or left out for no end. The"
            " longest wait.",
        ),
        ({"rows": 0}, "pace.rows=0 must be at least 1 row. Rows at once."),
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
    assert [described(field) is None for field in dataclasses.fields(Walk)] == [False, False, True]


def test_the_config_itself_has_no_name_before_its_settings():
    with pytest.raises(ValueError, match=r"^steps=0 must be at least 1"):
        check(Pace(steps=0), "")


def test_sections_are_listed_in_their_order_each_with_its_own_settings():
    walk, pace, rest = sections(Walk)
    assert [walk.name, pace.name, rest.name] == ["", "pace", "rest"]
    assert [entry.name for entry in walk.entries] == ["name"]
    assert pace.meaning == "How fast."
    steps, *_, secs, kind = pace.entries
    assert (steps.name, steps.kind, steps.default) == ("pace.steps", int, 3)
    assert (secs.kind, secs.default, secs.setting.unit) == (float, None, "seconds")
    assert kind.setting.choices == ("slow", "fast")


def test_what_is_implied_for_a_section_is_so_for_all_its_settings():
    *_, rest = sections(Walk)
    assert [(entry.default, entry.setting.implied) for entry in rest.entries] == [
        (None, "as the mood is")
    ] * 5
    assert rest.entries[0].setting.least == 1
