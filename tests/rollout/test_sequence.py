"""The host's record of a completion in flight."""

import numpy as np
import pytest

from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.sequence import GrowingSequence

LETTERS = "abcdefgh"


def _decode(ids):
    return "".join(LETTERS[i] for i in ids)


@pytest.mark.parametrize("step", [1, 2, 3, 8], ids="by {}".format)
@pytest.mark.parametrize(
    ("text", "stops", "least", "kept"),
    [
        ("abcdefgh", ("cd",), 0, "abcd"),
        ("abcdefgh", ("cd", "bc"), 0, "abc"),
        ("abcdefgh", ("x", "h"), 0, "abcdefgh"),
        ("abcdabcd", ("cd",), 5, "abcdabcd"),  # The first is there too early.
        ("abababab", ("ab",), 3, "abab"),
        ("abcdefgh", ("a",), 8, None),
        ("abcdefgh", ("a", "h"), 8, "abcdefgh"),
        ("abcdefgh", ("de",), 5, "abcde"),
        ("abcdefgh", ("ga",), 0, None),
        ("abcdefgh", (), 0, None),
    ],
)
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(
    text, stops, least, kept, step
):
    sampling = Sampling(8, (), stop_strings=stops, min_new_tokens=least)
    sequence = GrowingSequence(0, 0, CompletionRequest(np.arange(2), sampling), (0, 0))
    tokens, ended = [LETTERS.index(letter) for letter in text], False
    for first in range(0, len(tokens), step):
        chunk = tokens[first : first + step]
        sequence.append(chunk, [0.0] * len(chunk), 3, None, len(LETTERS))
        if ended := sequence.cut(_decode):
            break
    assert (_decode(sequence.tokens), ended) == ((kept or text), kept is not None)
    assert len(sequence.tokens) == len(sequence.logprobs) == len(sequence.versions)
