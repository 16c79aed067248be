"""Drafts are looked up in a text, and kept up to the first token that was not drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.rollout.speculation.drafts import NO_TOKEN, Drafts, Text, looked_up, verified

_looked_up = jax.jit(
    lambda references, own, newest, count: looked_up(Text.of(references, own, newest), count),
    static_argnums=3,
)


def draft(own, references=None, count=4):
    """Returns the draft after one row's tokens; tokens behind them must not matter."""
    row = np.array([[*own, own[-1], 7, 7]], np.int32)
    given = None if references is None else np.array([references], np.int32)
    drafts = _looked_up(given, row, np.array([len(own) - 1]), count)
    return drafts.tokens[0, : int(drafts.counts[0])].tolist()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 9, 2, 4, 1, 2], [3, 9, 2, 4]),  # Two tokens are alike, though one is nearer.
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # The newer of two equal matches, in its period.
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3], []),
        ([4], []),
    ],
)
def test_a_draft_is_what_followed_the_longest_match(own, expected):
    assert draft(own) == expected


def test_no_more_than_four_last_tokens_decide():
    old, new = [1, 2, 3, 4, 5, 8], [9, 2, 3, 4, 5, 6]
    assert draft([*old, *new, 1, 2, 3, 4, 5], count=1) == [6]
    assert draft([*old, 0, *new[2:], 1, 2, 3, 4, 5], count=1) == [8]


def test_a_draft_from_a_reference_ends_with_it():
    others = [NO_TOKEN, 1, 2, 3, NO_TOKEN, 6, 2, 8, 9, NO_TOKEN]
    assert draft([4, 1, 2], others) == [3]
    assert draft([4, 6, 2], others) == [8, 9]
    assert draft([6, 2, 4, 6, 2], others) == [4, 6, 2, 4]  # Own tokens come first.
    assert draft([4, 3], others) == []
    assert draft([5, 4], others) == []


def test_a_match_does_not_reach_from_a_row_into_its_references():
    # The row's only token follows the reference's end in the text, as if it had tokens before.
    others = [1, 2, 3, NO_TOKEN, 7, 3, 5, NO_TOKEN]
    assert draft([3], others, count=1) == [5]


def test_drafts_are_shortened_to_limits():
    drafts = Drafts(jnp.zeros((4, 3), int), jnp.array([3, 3, 1, 0]))
    assert drafts.at_most(jnp.array([2, -1, 9, 9])).counts.tolist() == [2, 0, 1, 0]


def kept(fed, drawn, draws=(True,) * 4, ended=(False,) * 4, is_fed=(True,) * 4):
    given = (np.array([values]) for values in (fed, drawn, draws, ended, is_fed))
    return verified(*given)[0].tolist()


def test_tokens_are_kept_up_to_the_first_that_was_not_drawn():
    fed = [9, 1, 2, 3]
    assert kept(fed, [1, 2, 3, 4]) == [True] * 4
    assert kept(fed, [5, 2, 3, 4]) == [True, False, False, False]
    assert kept(fed, [1, 5, 3, 4]) == [True, True, False, False]
    assert kept(fed, [1, 2, 3, 4], is_fed=(True, True, False, False)) == [True, True, False, False]
    assert kept(fed, [1, 2, 3, 4], is_fed=(False,) * 4) == [False] * 4


def test_nothing_is_kept_after_an_end():
    fed, drawn = [9, 1, 2, 3], [1, 2, 3, 4]
    ended = (False, True, False, False)
    assert kept(fed, drawn, ended=ended) == [True, True, False, False]


def test_tokens_of_a_prompt_are_kept_whatever_was_drawn():
    fed, drawn = [9, 1, 2, 3], [5, 5, 3, 4]
    assert kept(fed, drawn, draws=(False, False, True, True)) == [True] * 4
