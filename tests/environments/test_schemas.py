from typing import Literal

import pytest

from rl_sync.environments.schemas import function_schema, wrong_arguments


def look(
    place: str,
    steps: int = 1,
    scale: float = 1.0,
    is_slow: bool = False,
    path: list[int] | None = None,
    point: tuple[int, str] | None = None,
    sizes: dict[str, int] | None = None,
    mood: Literal["calm", "brave"] = "calm",
    either: int | str = 0,
    nested: list[int] | dict[str, int] = (),
) -> str:
    """Looks at a place.

    Args:
      place: the place.
      steps: how far.
      scale: how large.
      is_slow: slowly.
      path: the way.
      point: a point.
      sizes: the sizes.
      mood: the mood.
      either: one of two.
      nested: one of two with parts.
    """
    return place


SCHEMA = function_schema(look)


def test_a_schema_has_the_names_of_the_function():
    function = SCHEMA["function"]
    assert (function["name"], function["description"]) == ("look", "Looks at a place.")
    assert function["parameters"]["required"] == ["place"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 2},
        {"scale": 2},
        {"scale": 0.5},
        {"is_slow": True},
        {"path": []},
        {"path": [1, 2]},
        {"path": None},
        {"point": [1, "a"]},
        {"sizes": {"a": 1}},
        {"mood": "brave"},
        {"either": "a"},
        {"nested": {"a": 1}},
    ],
)
def test_arguments_of_the_annotated_types_pass(arguments):
    assert wrong_arguments(SCHEMA, {"place": "north", **arguments}) is None


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"place": 3}, "'place' must be of type string, not 3"),
        ({"place": None}, "'place' must be of type string, not None"),
        ({"steps": "2"}, "'steps' must be of type integer, not '2'"),
        ({"steps": 2.0}, "'steps' must be of type integer, not 2.0"),
        ({"steps": True}, "'steps' must be of type integer, not True"),
        ({"is_slow": 1}, "'is_slow' must be of type boolean, not 1"),
        ({"path": [1, "a"]}, "'path'[1] must be of type integer, not 'a'"),
        ({"point": [1]}, "'point' must have 2 items, not 1"),
        ({"point": ["a", 1]}, "'point'[0] must be of type integer, not 'a'"),
        ({"sizes": {"a": "b"}}, "'sizes'['a'] must be of type integer, not 'b'"),
        ({"mood": "sad"}, "'mood' must be one of 'calm', 'brave', not 'sad'"),
        ({"either": 0.5}, "'either' must be of type integer or string, not 0.5"),
        ({"nested": ["a"]}, "'nested'[0] must be of type integer, not 'a'"),
        ({"speed": 1}, "there is no argument 'speed' (its arguments: place, steps, scale"),
    ],
)
def test_other_arguments_are_named_with_the_rule(arguments, wrong):
    assert wrong in wrong_arguments(SCHEMA, {"place": "north", **arguments})


def test_a_missing_argument_is_named():
    assert wrong_arguments(SCHEMA, {"steps": 1}) == "the argument 'place' is missing"


def test_a_schema_by_hand_may_allow_any_other_properties():
    properties = {"sizes": {"type": "object", "additionalProperties": True}}
    schema = {"function": {"name": "f", "parameters": {"properties": properties}}}
    assert wrong_arguments(schema, {"sizes": {"a": 1}}) is None
    assert wrong_arguments({"function": {"name": "f"}}, {}) is None


def test_a_function_without_annotations_or_docstring_is_refused():
    def silent(place: str) -> str:
        return place

    def untyped(place):
        """Looks.

        Args:
          place: the place.
        """

    for function in (silent, untyped):
        with pytest.raises(ValueError, match=f"The tool {function.__name__} has no schema: .*Give"):
            function_schema(function)
