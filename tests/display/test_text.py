import pytest

from rl_sync.display.text import number, tokens, visible
from rl_sync.records.rollouts.rollout_records import Rollout
from tests.page.small_run import rollout


def test_tokens_have_the_classes_of_their_numbers():
    record = rollout(1, 3, versions=[[7, 1], [-1, 1]], logprobs=[-0.3, None])
    first, second = tokens(Rollout(**record))
    assert first.classes == "l3 u3 e4 g2 v1"
    assert first.title == (
        "token 0, id 5, logprob -0.3, ratio 1.3, entropy 0.9, advantage 0.5, version 7"
    )
    assert second.classes == "said masked"
    assert second.title == "token 1, id 6, written by the environment, not learned from"
    assert second.text == "↵\n"


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        ({"ratios": [1.0], "advantage": 0.0}, "l0 e4 v0"),
        ({"ratios": [0.0], "advantage": -2.0}, "l0 d4 e4 b4 v0"),
        ({"token_advantages": [-0.1]}, "l0 u3 e4 b1 v0"),
        ({"ratios": [], "entropies": [], "advantage": None}, "l0 v0"),
    ],
)
def test_a_token_has_a_colour_for_each_figure_that_is_known_of_it(fields, classes):
    assert tokens(Rollout(**rollout(1, 3, **fields)))[0].classes == classes


def test_what_cannot_be_seen_is_shown():
    assert visible("a\x00\x1b[1m\u202eb\n") == "a␀␛[1m\\u{202e}b\n"


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (0.98051, "0.981"), (12.345, "12.3"), (-10321.7, "-10,322"), (2e-7, "2e-07")],
)
def test_numbers_are_short_and_large_ones_are_whole(value, written):
    assert number(value) == written
