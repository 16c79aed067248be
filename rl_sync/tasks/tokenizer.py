"""Between text and token ids: what a tokenizer does, and one with a token a character."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

PAD_ID = 0
EOS_ID = 1
_FIRST_CHARACTER_ID = 2
_REMEMBERED_LENGTHS = 1 << 18


class Tokenizer(Hashable, Protocol):
    """What tasks and roles need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id."""

    @property
    def pad_id(self) -> int:
        """Fills a row after its end; masks, never ids, say what is padding."""

    @property
    def eos_id(self) -> int:
        """The id that ends a demonstration."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion, `eos_id` first."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text by itself, with nothing before or after it."""

    def encode_prompt(self, text: str) -> list[int]:
        """The ids that the policy goes on from when it is asked a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion up to its first end of sequence."""


# Loading a task asks for the same lengths several times, and encoding is what takes its time.
@functools.lru_cache(maxsize=_REMEMBERED_LENGTHS)
def prompt_tokens(tokenizer: Tokenizer, text: str) -> int:
    """How many tokens the policy goes on from when it is asked a text."""
    return len(tokenizer.encode_prompt(text))


@functools.lru_cache(maxsize=_REMEMBERED_LENGTHS)
def completion_tokens(tokenizer: Tokenizer, text: str) -> int:
    """How many tokens a completion of that text has, its end of sequence included."""
    return len(tokenizer.encode(text)) + 1


@dataclasses.dataclass(frozen=True)
class CharacterTokenizer:
    """Id 0 pads, id 1 ends a sequence, and the characters of `charset` follow in their order.

    Attributes:
      charset: the characters that texts may hold, each once.

    Raises:
      ValueError: a character stands twice in the charset, or there is none.
    """

    charset: str

    def __post_init__(self) -> None:
        if not self.charset:
            raise ValueError("A character tokenizer needs at least one character in its charset.")
        twice = sorted({c for c in self.charset if self.charset.count(c) > 1})
        if twice:
            raise ValueError(f"The charset {self.charset!r} holds {twice[0]!r} more than once.")

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """The tokenizer of exactly the characters in `texts`, in the order of their code points."""
        return cls("".join(sorted(set().union(*texts))))

    @property
    def vocab_size(self) -> int:
        """Characters, padding and end of sequence."""
        return len(self.charset) + _FIRST_CHARACTER_ID

    @property
    def pad_id(self) -> int:
        """Fills a row after its end."""
        return PAD_ID

    @property
    def eos_id(self) -> int:
        """Ends a completion."""
        return EOS_ID

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The one id that ends a completion."""
        return (EOS_ID,)

    def encode(self, text: str) -> list[int]:
        """The ids of the characters, without an end of sequence.

        Raises:
          ValueError: a character that is not in the charset.
        """
        ids = [self.charset.find(character) for character in text]
        if -1 in ids:
            place = ids.index(-1)
            raise ValueError(
                f"Character {text[place]!r} at {place} of {text!r} is not in the tokenizer's"
                f" charset {self.charset!r}."
            )
        return [i + _FIRST_CHARACTER_ID for i in ids]

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of the characters: nothing stands around a prompt.

        Raises:
          ValueError: a character that is not in the charset.
        """
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids up to the first end of sequence; padding inside it becomes U+FFFD.

        Raises:
          ValueError: an id that the tokenizer does not have.
        """
        characters = []
        for i in ids:
            if i == EOS_ID:
                break
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"Token id {i} is outside the {self.vocab_size} of the tokenizer.")
            characters.append("\ufffd" if i == PAD_ID else self.charset[i - _FIRST_CHARACTER_ID])
        return "".join(characters)
