import pytest

from rl_sync.expression import Term, parse_call, parse_calls, parse_sum


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("exact", [Term(1.0, "exact", {})]),
        (" 2 * exact ", [Term(2.0, "exact", {})]),
        ("-0.5*a + 1e-3*b", [Term(-0.5, "a", {}), Term(1e-3, "b", {})]),
        ("a - b", [Term(1.0, "a", {}), Term(-1.0, "b", {})]),
        ("pkg.mod:f", [Term(1.0, "pkg.mod:f", {})]),
        ("../a-b/c.py:f.g", [Term(1.0, "../a-b/c.py:f.g", {})]),
        ("f + ~/d.py:h", [Term(1.0, "f", {}), Term(1.0, "~/d.py:h", {})]),
        ("f(x=1, y='a)b + c')", [Term(1.0, "f", {"x": 1, "y": "a)b + c"})]),
        ("f(x=(1, -2.5)) + g(z={'a': [None, True]})",
         [Term(1.0, "f", {"x": (1, -2.5)}), Term(1.0, "g", {"z": {"a": [None, True]}})]),
    ],
)  # fmt: skip
def test_a_sum_has_weights_names_and_options(text, terms):
    assert parse_sum(text) == terms


@pytest.mark.parametrize(
    "text",
    ["", "+", "a b", "a +", "1.2.3 * a", "a(", "a(x=)", "a(x=f())", "a(1)", "a(**x)", "2", "a:b:"],
)
def test_what_cannot_be_read_is_quoted(text):
    with pytest.raises(ValueError, match=r"cannot be read|options are written"):
        parse_sum(text)


@pytest.mark.parametrize("parse", [parse_sum, parse_call, parse_calls])
def test_an_error_names_the_setting(parse):
    with pytest.raises(ValueError, match=r"^task\.reward='a\(' .*"):
        parse("a(", "task.reward")


def test_a_call_is_one_name():
    assert parse_call("tasks.py:sums(level=3)") == Term(1.0, "tasks.py:sums", {"level": 3})
    for text in ("a + b", "2 * a"):
        with pytest.raises(ValueError, match="one name with options"):
            parse_call(text)


def test_calls_are_separated_by_commas_outside_of_parentheses():
    assert parse_calls("a(x=1, y='b, c'), d") == [
        Term(1.0, "a", {"x": 1, "y": "b, c"}),
        Term(1.0, "d", {}),
    ]
    for text in ("", "a b", "a,", "2 * a", "a + b", "a(1)"):
        with pytest.raises(ValueError, match=r"separated by commas, such as name\(level=3\)"):
            parse_calls(text)
