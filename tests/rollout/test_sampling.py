import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.rollout.request import draw_key, draw_keys
from rl_sync.rollout.sampling import (
    LogitsProcessors,
    RowHistory,
    Sampling,
    adjusted_logits,
    draw,
    knobs,
    uniforms,
)

LOGITS = np.log([0.1, 0.4, 0.2, 0.3]).astype(np.float32)
DRAW = jax.jit(draw)
ADJUST = jax.jit(adjusted_logits)


def _sampling(**choices):
    return Sampling(**{"max_new_tokens": 9, "stop_ids": (), **choices})


def _adjusted(rows, logits=LOGITS, tokens=(0,), generated=0):
    """Returns the adjusted logits of each of the given choices for the same logits."""
    count = len(rows)
    history = RowHistory(
        tokens=np.tile(np.array([*tokens, 2], np.int32), (count, 1)),
        newest=np.full(count, len(tokens) - 1, np.int32),
        generated=np.full(count, generated, np.int32),
        live=np.ones(count, bool),
    )
    return np.asarray(ADJUST(np.tile(logits, (count, 1)), knobs(rows, 4), history))


def _probabilities(logits=LOGITS, tokens=(0,), generated=0, **choices):
    (adjusted,) = _adjusted([_sampling(**choices)], logits, tokens, generated)
    mass = np.exp(adjusted)
    return mass / mass.sum()


def _keys(count):
    return np.random.default_rng(0).integers(0, 2**32, (count, 2), dtype=np.uint32)


def test_temperature_sharpens():
    squares = np.array([0.01, 0.16, 0.04, 0.09])
    np.testing.assert_allclose(_probabilities(temperature=0.5), squares / squares.sum(), rtol=1e-5)


def test_top_k_keeps_the_likeliest():
    np.testing.assert_allclose(_probabilities(top_k=2), [0, 4 / 7, 0, 3 / 7], rtol=1e-5)


def test_top_p_keeps_the_fewest_that_reach_the_mass():
    np.testing.assert_allclose(_probabilities(top_p=0.6), [0, 4 / 7, 0, 3 / 7], rtol=1e-5)
    np.testing.assert_allclose(_probabilities(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9], rtol=1e-5)


def test_top_p_applies_to_what_top_k_left():
    np.testing.assert_allclose(_probabilities(top_k=2, top_p=0.5), [0, 1, 0, 0], rtol=1e-5)


def test_min_p_keeps_what_is_not_much_less_likely_than_the_likeliest():
    np.testing.assert_allclose(_probabilities(min_p=0.6), [0, 4 / 7, 0, 3 / 7], rtol=1e-5)
    np.testing.assert_allclose(_probabilities(min_p=0.4), [0, 4 / 9, 2 / 9, 3 / 9], rtol=1e-5)


def test_equal_logits_do_not_let_more_than_k_through():
    np.testing.assert_allclose(_probabilities(np.zeros(4, np.float32), top_k=2), [0.5, 0.5, 0, 0])


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = np.array([2.0, -1.0, 0.5, -0.5], np.float32)
    (adjusted,) = _adjusted([_sampling(repetition_penalty=2.0)], logits, tokens=(0, 1, 0))
    np.testing.assert_allclose(adjusted, [1.0, -2.0, 0.5, -0.5])


def test_what_stands_after_the_newest_token_was_not_repeated():
    logits = np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    (adjusted,) = _adjusted([_sampling(repetition_penalty=2.0)], logits, tokens=(3,))
    np.testing.assert_allclose(adjusted, [1.0, 1.0, 1.0, 0.5])


def test_stop_ids_are_excluded_until_the_completion_is_long_enough():
    choices = {"stop_ids": (1, 3), "min_new_tokens": 3}
    for generated in (0, 1):
        found = _probabilities(generated=generated, **choices)
        np.testing.assert_allclose(found, [1 / 3, 0, 2 / 3, 0], rtol=1e-5)
    np.testing.assert_allclose(_probabilities(generated=2, **choices), np.exp(LOGITS), rtol=1e-5)


def test_a_row_s_logits_do_not_depend_on_the_choices_beside_it():
    rows = [
        _sampling(),
        _sampling(temperature=0.7, top_k=2),
        _sampling(repetition_penalty=1.3),
        _sampling(greedy=True, top_p=0.5),
        _sampling(top_p=0.8, min_p=0.3),
        _sampling(min_new_tokens=4, stop_ids=(1,)),
    ]
    together = _adjusted(rows)
    for row, adjusted in zip(rows, together, strict=True):
        np.testing.assert_array_equal(_adjusted([row])[0], adjusted)


def test_choices_that_nobody_made_are_not_computed():
    history = RowHistory(
        np.zeros((2, 3), np.int32), np.zeros(2, np.int32), np.zeros(2, np.int32), np.ones(2, bool)
    )
    choice = knobs([_sampling(), _sampling(top_k=2)], 4)
    asleep = history._replace(live=np.array([True, False]))
    logits = np.tile(LOGITS, (2, 1))
    steps = jax.make_jaxpr(adjusted_logits)(logits, choice, history).eqns
    assert [step.primitive.name for step in steps].count("cond") == 3
    always = "".join(str(step) for step in steps if step.primitive.name != "cond")
    assert "sort" not in always
    assert "scatter" not in always
    np.testing.assert_array_equal(ADJUST(logits, choice, asleep), logits)
    assert np.isneginf(ADJUST(logits, choice, history)).any()


@pytest.mark.gate
@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"temperature": 0.5}, LogitsProcessors()),
        ({"repetition_penalty": 1.3}, LogitsProcessors(penalizes=True)),
        ({"min_new_tokens": 4, "stop_ids": (1,)}, LogitsProcessors(goes_on=True)),
        ({"top_k": 2}, LogitsProcessors(truncates=True)),
        ({"top_p": 0.8}, LogitsProcessors(truncates=True)),
        ({"min_p": 0.1}, LogitsProcessors(truncates=True)),
        ({"min_p": 0.1, "greedy": True}, LogitsProcessors()),
    ],
)
def test_a_program_has_the_changes_that_are_asked_for_and_no_other(fields, changes):
    sampling = _sampling(**fields)
    assert LogitsProcessors.of(sampling) == changes
    history = RowHistory(*(np.zeros(shape, np.int32) for shape in ((1, 3), 1, 1)), np.ones(1, bool))
    rows = np.asarray(LOGITS)[None], knobs([sampling], 4), history
    adjusted = jax.make_jaxpr(functools.partial(adjusted_logits, changes=changes))(*rows)
    names = [step.primitive.name for step in adjusted.eqns]
    assert names.count("cond") == sum(changes)
    np.testing.assert_array_equal(
        adjusted_logits(*rows, changes=changes), adjusted_logits(*rows), strict=True
    )


@pytest.mark.gate
@pytest.mark.parametrize("vocab_size", [1, 2, 11, 512, 1000])
def test_draws_have_the_frequencies_of_their_logprobs(vocab_size):
    """χ² of 40,000 draws with k − 1 degrees of freedom: mean k − 1, deviation √(2(k − 1))."""
    count = 40_000
    logits = np.random.default_rng(1).normal(0, 1.5, vocab_size).astype(np.float32)
    logits[3:5] = -np.inf
    adjusted = np.tile(logits, (count, 1))
    numbers = uniforms(_keys(count), np.zeros(count, np.int32))
    tokens, logprobs = DRAW(numbers, adjusted, np.zeros(count, bool))
    expected = np.exp(np.asarray(jax.nn.log_softmax(logits)))
    np.testing.assert_allclose(np.exp(logprobs), expected[np.asarray(tokens)], rtol=1e-4)
    counted = np.bincount(tokens, minlength=vocab_size)
    possible = expected > 0
    assert counted[~possible].sum() == 0
    ideal = count * expected[possible]
    chi_square = np.sum((counted[possible] - ideal) ** 2 / ideal)
    freedom = possible.sum() - 1
    assert abs(chi_square - freedom) <= 5 * np.sqrt(2 * freedom)


def test_numbers_at_the_ends_of_their_range_draw_possible_tokens():
    adjusted = np.array([-np.inf, 0.0, -np.inf, -30.0, 0.0, -np.inf], np.float32)
    ends = np.array([0.0, 1 - 2**-24], np.float32)
    numbers = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(-1, 2)
    tokens, logprobs = DRAW(numbers, np.tile(adjusted, (4, 1)), np.zeros(4, bool))
    assert set(np.asarray(tokens).tolist()) <= {1, 3, 4}
    assert np.all(np.isfinite(logprobs))


def test_greedy_rows_take_the_likeliest_with_all_the_mass():
    greedy = np.array([True, False])
    numbers = np.zeros((2, 2), np.float32)
    tokens, logprobs = DRAW(numbers, np.tile(LOGITS, (2, 1)), greedy)
    assert tokens.tolist() == [1, 0]
    np.testing.assert_allclose(logprobs, [0.0, LOGITS[0]], rtol=1e-5)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_the_logprob_of_a_draw_that_means_nothing_is_nan(broken, greedy):
    adjusted = np.tile(LOGITS, (2, 1))
    adjusted[1, -1] = broken
    _, logprobs = DRAW(np.zeros((2, 2), np.float32), adjusted, np.array([greedy] * 2))
    assert np.isfinite(logprobs).tolist() == [True, False]


def test_numbers_depend_on_the_key_and_the_count_and_are_uniform():
    count = 4000
    numbers = np.asarray(uniforms(_keys(count), np.arange(count, dtype=np.int32)))
    again = uniforms(_keys(count)[7:9], jnp.array([7, 8], jnp.int32))
    np.testing.assert_array_equal(again, numbers[7:9])
    later = np.asarray(uniforms(_keys(count), np.arange(1, count + 1, dtype=np.int32)))
    for sample in (numbers, later):
        assert sample.min() >= 0
        assert sample.max() < 1
        np.testing.assert_allclose(sample.mean(axis=0), 0.5, atol=0.03)
    pairs = np.corrcoef(np.concatenate([numbers, later], axis=1).T) - np.eye(4)
    assert np.abs(pairs).max() < 0.08


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"temperature": 0.0}, r"temperature must be above 0, not 0.0; .*greedy"),
        ({"top_k": -1}, r"top_k must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], not 0.0"),
        ({"min_p": 1.0}, r"min_p must be in \[0, 1\), not 1.0"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be above 0"),
        ({"max_new_tokens": 0}, r"max_new_tokens must be at least 1"),
        ({"min_new_tokens": 10}, r"min_new_tokens=10 must be from 0 to max_new_tokens=9"),
        ({"stop_ids": (-1,)}, r"must be token ids"),
        ({"stop_strings": ("",)}, r"must not be empty"),
    ],
)
def test_choices_outside_their_range_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        _sampling(**choices)


@pytest.mark.parametrize("words", [1, 3, 4, 6])
def test_many_keys_at_once_are_those_of_numpys_seed_sequence(words):
    rng = np.random.default_rng(words)
    seeds = [tuple(map(int, row)) for row in rng.integers(0, 2**32, (50, words), np.uint64)]
    seeds.append((0,) * words)
    expected = [draw_key(seed[:-1], seed[-1]) for seed in seeds]
    np.testing.assert_array_equal(draw_keys(seeds), expected)


def test_keys_of_seeds_of_several_lengths_or_of_large_numbers_are_made_one_by_one():
    seeds = [(1, 2), (1, 2, 3), (2**40, 0)]
    expected = [draw_key(seed[:-1], seed[-1]) for seed in seeds]
    np.testing.assert_array_equal(draw_keys(seeds), expected)
    assert draw_keys([]).shape == (0, 2)
