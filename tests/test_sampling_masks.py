"""Sampling masks as few numbers: what was written is read again, in few entries."""

import jax
import numpy as np
import pytest

from rl_sync.models.vocabulary.token_sets import kept_at, packed
from rl_sync.sampling_masks import (
    NOWHERE,
    before,
    no_entries,
    of_words,
    padded,
    shifted,
    word_count,
)

_packed = jax.jit(packed)
_kept_at = jax.jit(kept_at, static_argnums=(1, 2))


def _words(members):
    return np.asarray(_packed(members))


def _read(entries, tokens, vocab):
    """Returns what the device makes of entries, as members of sets."""
    words = np.asarray(_kept_at(padded([entries]), tokens, vocab))[0]
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
    return bits.reshape(tokens, -1)[:, :vocab].astype(bool)


def _sets(vocab):
    """Sets of all sizes: one token, all, all but one, a few, half."""
    rng = np.random.default_rng(vocab)
    members = rng.random((9, vocab)) < np.array([0, 1, 1, 0.01, 0.5, 0.9, 0.02, 1, 0])[:, None]
    members[np.arange(9), rng.integers(0, vocab, 9)] = True
    members[2, 0] = False
    return members


@pytest.mark.gate
@pytest.mark.parametrize("vocab", [1, 7, 31, 32, 33, 64, 1000, 4099])
def test_what_could_be_drawn_is_read_as_it_was_written(vocab):
    members = _sets(vocab)
    if vocab == 1:
        members[:] = True
    entries = of_words(_words(members), vocab)
    np.testing.assert_array_equal(_read(entries, 9, vocab), members)


def test_a_small_set_takes_few_entries_and_no_set_more_than_the_vocabulary_has_words():
    vocab = 151_936
    members = np.zeros((4, vocab), bool)
    members[0, [5, 77_000, 151_935]] = True
    members[1] = True
    members[1, [9, 10]] = False
    members[2] = True
    members[3] = np.random.default_rng(0).random(vocab) < 0.5
    entries = of_words(_words(members), vocab)
    counts = np.bincount(entries[:, 0], minlength=4)
    assert counts.tolist() == [4, 1, 0, word_count(vocab)]
    np.testing.assert_array_equal(_read(entries, 4, vocab), members)


def test_positions_without_entries_were_drawn_from_everything():
    assert _read(no_entries(), 3, 40).all()
    entries = shifted(of_words(_words(_sets(40))[:2], 40), 5)
    read = _read(entries, 8, 40)
    np.testing.assert_array_equal(read[5:7], _sets(40)[:2])
    assert read[:5].all()
    assert read[7:].all()


def test_entries_behind_the_end_are_dropped():
    entries = of_words(_words(_sets(100)), 100)
    np.testing.assert_array_equal(_read(before(entries, 4), 9, 100)[:4], _sets(100)[:4])
    assert _read(before(entries, 4), 9, 100)[4:].all()


def test_masks_of_trajectories_are_padded_to_one_length():
    masks = padded([no_entries(), of_words(_words(_sets(100)), 100)], size=40)
    assert masks.shape == (2, 40, 3)
    assert masks.dtype == np.uint32
    assert (masks[0, :, 0] == NOWHERE).all()
