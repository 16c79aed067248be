"""Comparison of vocabularies, for models that read the same token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer


def first_difference(one: Tokenizer, other: Tokenizer) -> tuple[int, str, str] | None:
    """Returns the first id of a tokenizer that is another token in the other one, and both tokens.

    Returns:
      None if the other vocabulary holds the first one; a missing token is empty.
    """
    ours, theirs = _tokens(one), _tokens(other)
    for number in sorted(ours):
        if ours[number] != theirs.get(number):
            return number, ours[number], theirs.get(number, "")
    return None


def digest_of(tokenizer: Tokenizer) -> str:
    """Returns a digest of all tokens and their ids, by which two machines compare vocabularies."""
    return hashlib.sha256(json.dumps(sorted(_tokens(tokenizer).items())).encode()).hexdigest()


def _tokens(tokenizer: Tokenizer) -> Mapping[int, str]:
    if isinstance(tokenizer, PretrainedTokenizer):
        return {number: text for text, number in tokenizer.backend.get_vocab().items()}
    return {number: tokenizer.decode_all([number]) for number in range(tokenizer.vocab_size)}
