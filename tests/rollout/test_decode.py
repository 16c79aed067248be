import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.logprobs import token_logprobs
from rl_sync.rollout import decode
from rl_sync.rollout.decode import generate
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny

EOS = 1
PROMPTS = np.array([[3, 4, 5, 6], [7, 8, 0, 0], [2, 2, 9, 0]], np.int32)
LENGTHS = np.array([4, 2, 3], np.int32)
SAMPLING = Sampling(max_new_tokens=8, eos_id=EOS)


def _keys(rows, seed=0):
    return jax.random.split(jax.random.key(seed), rows)


def _generate(params, sampling=SAMPLING, seed=0, **options):
    return generate(tiny.CONFIG, params, PROMPTS, LENGTHS, _keys(3, seed), sampling, **options)


def test_greedy_decoding_takes_the_argmax_of_the_full_forward_pass():
    params = tiny.params()
    sampling = dataclasses.replace(SAMPLING, greedy=True, eos_id=-1)
    out = _generate(params, sampling)
    for row, length in enumerate(LENGTHS):
        text = PROMPTS[row, :length].tolist()
        for _ in range(8):
            logits = tiny.forward(tiny.CONFIG, params, np.array([text], np.int32))
            text.append(int(np.argmax(logits[0, -1])))
        assert out.tokens[row, : length + 8].tolist() == text
        assert np.all(out.behavior_logprobs[row] == 0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_behavior_logprobs_are_those_that_the_trainer_computes(temperature):
    params = tiny.params()
    out = _generate(params, dataclasses.replace(SAMPLING, temperature=temperature))
    logprobs, _ = token_logprobs(tiny.CONFIG, params, out.tokens, temperature)
    mask = np.asarray(out.completion_mask)
    np.testing.assert_allclose(
        np.asarray(out.behavior_logprobs)[mask], np.asarray(logprobs)[mask], atol=1e-5
    )


def test_a_completion_follows_its_prompt_and_ends_with_its_end_of_sequence():
    ended = 0
    for seed in range(8):
        out = _generate(tiny.params(), seed=seed)
        for row, length in enumerate(LENGTHS):
            mask = np.asarray(out.completion_mask[row])
            (places,) = np.nonzero(mask)
            assert places[0] == length
            assert np.all(np.diff(places) == 1)
            completion = np.asarray(out.tokens[row])[mask]
            assert EOS not in completion[:-1]
            assert completion[-1] == EOS or len(completion) == 8
            ended += completion[-1] == EOS
            assert np.all(out.tokens[row, :length] == PROMPTS[row, :length])
            after = np.asarray(out.tokens[row])[places[-1] + 1 :]
            assert np.all(after == 0)
            assert np.all(np.asarray(out.behavior_logprobs[row])[~mask] == 0)
    assert ended > 0, "no completion ended: the test has seen nothing"


def test_a_sampled_padding_id_stays_in_the_completion():
    seen = 0
    for seed in range(8):
        out = _generate(tiny.params(), dataclasses.replace(SAMPLING, temperature=3.0), seed)
        mask, tokens = np.asarray(out.completion_mask), np.asarray(out.tokens)
        seen += np.sum(mask & (tokens == 0))
        assert np.all(np.asarray(out.behavior_logprobs)[mask] < 0)
    assert seen > 0


def test_a_row_does_not_depend_on_its_batch():
    params, keys = tiny.params(), _keys(3)
    together = _generate(params)
    order = np.array([2, 0, 1])
    shuffled = generate(tiny.CONFIG, params, PROMPTS[order], LENGTHS[order], keys[order], SAMPLING)
    alone = generate(tiny.CONFIG, params, PROMPTS[1:2], LENGTHS[1:2], keys[1:2], SAMPLING)
    np.testing.assert_array_equal(shuffled.tokens, together.tokens[order])
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[1])


def test_other_keys_give_other_completions():
    params = tiny.params()
    assert np.any(_generate(params, seed=0).tokens != _generate(params, seed=1).tokens)


def test_chunks_change_nothing():
    params = tiny.params()
    whole, pieces = _generate(params, chunk_tokens=32), _generate(params, chunk_tokens=3)
    jax.tree.map(np.testing.assert_array_equal, whole, pieces)


def test_new_weights_and_sampling_choices_compile_nothing():
    _generate(tiny.params())
    compiled = decode.prefill._cache_size(), decode.decode_chunk._cache_size()
    _generate(tiny.params(seed=3), dataclasses.replace(SAMPLING, temperature=0.5, top_k=3))
    _generate(tiny.params(seed=4), dataclasses.replace(SAMPLING, greedy=True), chunk_tokens=2)
    assert (decode.prefill._cache_size(), decode.decode_chunk._cache_size()) == compiled


def test_rows_beyond_the_models_length_are_refused():
    with pytest.raises(ValueError, match=r"need rows of 24, but model.max_length=16"):
        _generate(tiny.params(), Sampling(max_new_tokens=20, eos_id=EOS))
