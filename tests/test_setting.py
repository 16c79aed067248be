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
    rests: bool = setting(True, "Rests at noon.", implied="as the sun shines")


@dataclasses.dataclass(frozen=True)
class Walk:
    pace: Pace = section(Pace, "How fast.")
    rest: Pace = section(Pace, "How slow.", implied="as the mood is")
    name: str = setting("walk", "Name of the way.")


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
    assert described(dataclasses.fields(Walk)[0]).meaning == "How fast."


def test_a_field_without_a_description_is_not_checked_and_cannot_be_listed():
    plain = dataclasses.make_dataclass("Plain", [("steps", int, 0)])
    assert described(dataclasses.fields(plain)[0]) is None
    check(plain(steps=-1), "plain")
    with pytest.raises(AssertionError, match="steps has no description"):
        list(sections(plain))


def test_the_config_itself_has_no_name_before_its_settings():
    with pytest.raises(ValueError, match=r"^steps=0 must be at least 1"):
        check(Pace(steps=0), "")


def test_sections_are_listed_in_their_order_each_with_its_own_settings():
    walk, pace, rest = sections(Walk)
    assert [walk.name, pace.name, rest.name] == ["", "pace", "rest"]
    assert [entry.name for entry in walk.entries] == ["name"]
    assert pace.meaning == "How fast."
    steps, *_, secs, kind, _ = pace.entries
    assert (steps.name, steps.kind, steps.default) == ("pace.steps", int, 3)
    assert (secs.kind, secs.default, secs.setting.unit) == (float, None, "seconds")
    assert kind.setting.choices == ("slow", "fast")


def test_what_is_implied_for_a_section_is_so_for_its_settings_that_do_not_say_it():
    *_, rest = sections(Walk)
    assert [entry.default for entry in rest.entries] == [None] * 6
    implied = [entry.setting.implied for entry in rest.entries]
    assert implied == [*["as the mood is"] * 3, "no end", "as the mood is", "as the sun shines"]
    assert rest.entries[0].setting.least == 1


@dataclasses.dataclass(frozen=True)
class Shoes:
    laces: bool = setting(True, "Ties them.")
    size: int = setting(42, "Size.", free="after_sft")


def test_what_a_section_is_free_for_its_settings_are_that_do_not_say_it():
    hike = dataclasses.make_dataclass(
        "Hike", [("shoes", Shoes, section(Shoes, "On the feet.", free="always"))], frozen=True
    )
    _, shoes = sections(hike)
    assert [entry.setting.free for entry in shoes.entries] == ["always", "after_sft"]
