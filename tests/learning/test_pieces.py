"""A piece gets its arguments by their names, so these are the names of something."""

import dataclasses
import inspect

import pytest

from rl_sync.algorithms import algorithm as pieces
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.returns import AdvantageEstimate
from rl_sync.learning.objective import BatchExperience, Totals
from rl_sync.types import Rows

SETTINGS = {field.name for field in dataclasses.fields(Algorithm)}
OF_BATCH = ("rewards", "lengths", "baselines", "values", "mask", "sequences", "group_size")
OF_PARTS = ("parts", "part_weights")
BATCH = SETTINGS | {*OF_BATCH, *OF_PARTS, "roles"}
KNOWN = BatchExperience(Rows(*[None] * 4), None, AdvantageEstimate(None), None).named()
UPDATE = SETTINGS | {*KNOWN, *Totals._fields, "logprobs", "old_logprobs"}
FUNCTIONS = {
    **{f"advantage={name}": (one.function, BATCH) for name, one in pieces.ADVANTAGES.items()},
    **{
        f"loss={name}": (one.function, UPDATE)
        for name, one in pieces.LOSSES.items()
        if not one.of_scores
    },
    **{
        f"clipped by {name}": (one.clipped.function, UPDATE)
        for name, one in pieces.LOSSES.items()
        if one.clipped
    },
    **{f"correction={name}": (one.function, UPDATE) for name, one in pieces.CORRECTIONS.items()},
    **{f"proximal={name}": (one.function, UPDATE) for name, one in pieces.PROXIMAL.items()},
    **{f"aggregation={name}": (one.function, UPDATE) for name, one in pieces.AGGREGATIONS.items()},
}


def test_every_argument_of_a_piece_is_given(subtests):
    for name, (function, given) in FUNCTIONS.items():
        with subtests.test(name):
            assert set(inspect.signature(function).parameters) - given <= {"epsilon"}


def test_a_piece_is_called_with_what_it_has_arguments_for():
    def piece(low, high=2.0, epsilon=1.0):
        return low, high, epsilon

    assert pieces.call(piece, {"low": 0.0, "high": 3.0, "width": 9}, low=1.0) == (
        1.0,
        3.0,
        1.0,
    )
    with pytest.raises(TypeError, match="low"):
        pieces.call(piece, {"high": 3.0})


def test_the_arguments_of_a_piece_say_what_it_needs():
    advantages, losses = pieces.ADVANTAGES.items(), pieces.LOSSES.items()
    assert {name for name, one in advantages if one.needs_values} == {"gae", "n_step"}
    assert {name for name, one in advantages if one.needs_baselines} == {"remax"}
    assert {name for name, one in advantages if one.needs_parts} == {"gdpo"}
    assert {name for name, one in advantages if one.needs_roles} == {"rae"}
    alone = {"gae", "n_step", "remax", "rae", "reinforce_pp", "demonstration", "none"}
    assert {name for name, one in advantages if not one.compares_groups} == alone
    assert {name for name, one in losses if one.needs_reference} == {"dpo"}
    assert {name for name, one in losses if one.clips} == {
        "ppo_clip", "cispo", "gspo", "gmpo", "dppo",
    }  # fmt: skip
