"""Defines tokenizers: the interface for tasks, and a tokenizer with one token a character."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rl_sync.tasks.pictures.places import PLACE, joined
from rl_sync.tasks.pictures.tile_processor import PictureMarks
from rl_sync.thoughts import KNOWN, ThoughtMarks, begun_by

PAD_ID = 0
EOS_ID = 1
_FIRST_CHARACTER_ID = 2
_REMEMBERED_LENGTHS = 1 << 18
BEFORE_TOKENS = 40
"""Number of ids before a reply in which the mark is looked for that begins its thoughts."""

Messages = Sequence[Mapping[str, Any]]
"""Messages of a conversation, as chat templates of `transformers` take them."""

Schemas = Sequence[Mapping[str, Any]]
"""JSON schemas of tools, as chat templates take them."""


class Tokenizer(Hashable, Protocol):
    """Operations of a tokenizer that tasks and roles need."""

    @property
    def vocab_size(self) -> int:
        """Maximum id plus one."""

    @property
    def pad_id(self) -> int:
        """Id that fills a row after its end; padding is recognised by masks, never by this id."""

    @property
    def eos_id(self) -> int:
        """Id that ends a demonstration."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All ends of sequence, `eos_id` first."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All ids that end a completion: `eos_ids`, and those of `rollout.stop_ids`."""

    def with_stop_ids(self, stop_ids: tuple[int, ...]) -> Tokenizer:
        """Returns the tokenizer of a policy whose completions also end with these ids."""

    @property
    def thoughts(self) -> tuple[ThoughtMarks, ...]:
        """Marks around the thoughts of replies; see `rl_sync.thoughts`."""

    def encode(self, text: str) -> list[int]:
        """Encodes a text by itself, without special tokens around it."""

    def encode_prompt(self, text: str) -> list[int]:
        """Encodes a text as a prompt that the policy continues."""

    def encode_messages(self, messages: Messages, tools: Schemas = ()) -> list[int]:
        """Encodes a conversation as a prompt that the policy continues.

        Names of special tokens in contents are plain text, except in a reply that is begun.

        Args:
          messages, tools: see `rl_sync.tasks.tokenizers.prompt_messages.PromptMessages`.

        Raises:
          ValueError: the chat template rejects the conversation; or there is none, and there are
            tools.
        """

    def encode_literally(self, text: str, begins: bool = False) -> list[int]:
        """Encodes a text in which the names of special tokens are plain text.

        Args:
          text: the text.
          begins: whether to add the special tokens at the beginning of a sequence, if there are
            any.
        """

    def image_id(self, marks: PictureMarks | None) -> int:
        """Returns the id of the token that stands for a part of an image.

        Raises:
          ValueError: the vocabulary has no such token.
        """

    def encode_pictured(
        self,
        texts: Sequence[str],
        pictures: Sequence[Sequence[str | int]],
        marks: PictureMarks | None,
        asked: tuple[Messages, Schemas] | None = None,
    ) -> list[list[int] | int]:
        """Encodes a prompt with images, in which the names of image tokens are plain text.

        Args:
          texts: texts around the images, one more than there are images.
          pictures: for each image, texts and numbers of tiles, in order.
          marks: tokens of images in a pretrained vocabulary.
          asked: messages and tools of a conversation, which the chat template writes in place of
            the texts; None for a user's message.

        Returns:
          Token ids of texts, and the numbers of tiles, in order.
        """

    def encode_reply(
        self, text: str, *, continues: bool = False, marks: PictureMarks | None = None
    ) -> list[int]:
        """Encodes a reply to learn, as the policy draws it behind its prompt, up to its end.

        Args:
          text: the reply, or the rest of one.
          continues: whether the prompt ends with a reply that is begun.
          marks: tokens of images in a pretrained vocabulary; their names in the text are plain
            text.
        """

    def describe_prompt(
        self,
        asked: tuple[Messages, Schemas] | None,
    ) -> str:
        """Says in words what writes a prompt, and which system message it has.

        Args:
          asked: messages and tools of the prompt's conversation; None for a text.
        """

    def describe_ends(self) -> str:
        """Names the tokens that end a reply, if they may surprise; empty otherwise."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes a completion up to the first id that ends it."""

    def decode_all(self, ids: Sequence[int]) -> str:
        """Decodes every id, even after an end of sequence; special tokens stay visible."""


# Loading a task needs the same lengths several times, and encoding takes most of its time.
@functools.lru_cache(maxsize=_REMEMBERED_LENGTHS)
def completion_tokens(
    tokenizer: Tokenizer,
    text: str,
    continues: bool = False,
    marks: PictureMarks | None = None,
) -> int:
    """Counts the tokens of a reply to learn, its end of sequence included; see `encode_reply`."""
    return len(tokenizer.encode_reply(text, continues=continues, marks=marks)) + 1


def without_end(tokenizer: Tokenizer, drawn: Sequence[int]) -> Sequence[int]:
    """Returns the ids of a completion without the one that ended it, if one did."""
    return drawn[:-1] if len(drawn) and drawn[-1] in tokenizer.end_ids else drawn


def begun_reply(tokenizer: Tokenizer, before: Sequence[int]) -> str:
    """Returns the mark with which a prompt has begun the thoughts of a reply; else "".

    Args:
      before: ids before the reply; the last `BEFORE_TOKENS` are enough.
    """
    return begun_by(tokenizer.decode_all(before[-BEFORE_TOKENS:]), tokenizer.thoughts)


def plain_text(messages: Messages, tools: Schemas = ()) -> str:
    """Returns the contents of messages one after the other, as without a chat template.

    Raises:
      ValueError: there are tools, which have no place.
    """
    if tools:
        raise ValueError(
            "A conversation has tools, but without a chat template they have no place in a prompt:"
            " use a tokenizer with a chat template, and not tokenizer.chat=no."
        )
    return "".join(one.get("content") or "" for one in messages)


@dataclasses.dataclass(frozen=True)
class CharacterTokenizer:
    """A tokenizer of characters: id 0 pads, id 1 ends a sequence, then `charset` follows.

    Attributes:
      charset: characters that texts may contain, each once, in the order of their ids.
      shows_images: whether there is a last id, which stands for a part of an image.
      thoughts: see `Tokenizer`.
      stop_ids: ids that end a completion besides the end of sequence.

    Raises:
      ValueError: a character occurs twice in the charset, or there is none.
    """

    charset: str
    shows_images: bool = False
    thoughts: tuple[ThoughtMarks, ...] = KNOWN
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.charset:
            raise ValueError("A character tokenizer needs at least one character in its charset.")
        twice = sorted({c for c in self.charset if self.charset.count(c) > 1})
        if twice:
            raise ValueError(f"The charset {self.charset!r} holds {twice[0]!r} more than once.")

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """Makes the tokenizer for the characters in `texts`, in the order of their code points."""
        return cls("".join(sorted(set().union(*texts))))

    @property
    def vocab_size(self) -> int:
        """Number of characters, plus padding, end of sequence, and the token of images."""
        return len(self.charset) + _FIRST_CHARACTER_ID + self.shows_images

    @property
    def pad_id(self) -> int:
        """Id that fills a row after its end."""
        return PAD_ID

    @property
    def eos_id(self) -> int:
        """Id that ends a completion."""
        return EOS_ID

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The single end of sequence."""
        return (EOS_ID,)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All ids that end a completion."""
        return (EOS_ID, *self.stop_ids)

    def with_stop_ids(self, stop_ids: tuple[int, ...]) -> CharacterTokenizer:
        """Returns the tokenizer of a policy whose completions also end with these ids."""
        return dataclasses.replace(self, stop_ids=stop_ids)

    def encode(self, text: str) -> list[int]:
        """Encodes the characters, without an end of sequence.

        Raises:
          ValueError: a character is not in the charset.
        """
        ids = [self.charset.find(character) for character in text]
        if -1 in ids:
            place = ids.index(-1)
            raise ValueError(
                f"Character {text[place]!r} at {place} of {text!r} is not in the tokenizer's"
                f" charset {self.charset!r}: name it in the `charset` of the environment's class or"
                " of the task's Problems, or set tokenizer.path."
            )
        return [i + _FIRST_CHARACTER_ID for i in ids]

    def encode_prompt(self, text: str) -> list[int]:
        """Encodes the characters, with nothing around them.

        Raises:
          ValueError: a character is not in the charset.
        """
        return self.encode(text)

    def encode_messages(self, messages: Messages, tools: Schemas = ()) -> list[int]:
        """Encodes the contents of the messages, one after the other.

        Raises:
          ValueError: there are tools, or a character is not in the charset.
        """
        return self.encode(plain_text(messages, tools))

    def encode_literally(self, text: str, begins: bool = False) -> list[int]:
        """Encodes the characters; special tokens have no names here, and none begins a sequence.

        Raises:
          ValueError: a character is not in the charset.
        """
        return self.encode(text)

    def image_id(self, marks: PictureMarks | None = None) -> int:
        """Returns the id that stands for a part of an image, the last one.

        Raises:
          ValueError: the tokenizer was made without images.
        """
        del marks
        if not self.shows_images:
            raise ValueError("This character tokenizer has no id for images: make it with one.")
        return self.vocab_size - 1

    def encode_pictured(
        self,
        texts: Sequence[str],
        pictures: Sequence[Sequence[str | int]],
        marks: PictureMarks | None = None,
        asked: tuple[Messages, Schemas] | None = None,
    ) -> list[list[int] | int]:
        """Encodes a prompt with images; see `Tokenizer`.

        Raises:
          ValueError: a character is not in the charset.
        """
        del marks
        if asked is not None:
            written = plain_text(*asked)
            texts = written.split(PLACE) if pictures else [written]
        pieces = joined(texts, pictures)
        return [self.encode(one) if isinstance(one, str) else one for one in pieces]

    def encode_reply(
        self, text: str, *, continues: bool = False, marks: PictureMarks | None = None
    ) -> list[int]:
        """Encodes the characters; the token of images has no name.

        Raises:
          ValueError: a character is not in the charset.
        """
        del continues, marks
        return self.encode(text)

    def describe_prompt(
        self,
        asked: tuple[Messages, Schemas] | None,
    ) -> str:
        """Says that prompts are characters."""
        del asked
        return "one token a character"

    def describe_ends(self) -> str:
        """Says nothing: there is one end."""
        return ""

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes up to the first id that ends a completion; padding inside becomes U+FFFD.

        Raises:
          ValueError: an id is outside the vocabulary.
        """
        ends = self.end_ids
        return self.decode_all(list(itertools.takewhile(lambda i: i not in ends, ids)))

    def decode_all(self, ids: Sequence[int]) -> str:
        """Decodes every id; an end of sequence has no text.

        Padding becomes U+FFFD, and the token of images U+FFFC.

        Raises:
          ValueError: an id is outside the vocabulary.
        """
        try:
            return "".join(map(_texts(self.charset, self.shows_images).__getitem__, ids))
        except KeyError as error:
            raise ValueError(
                f"Token id {error.args[0]} is outside the {self.vocab_size} of the tokenizer."
            ) from None


@functools.lru_cache(maxsize=16)
def _texts(charset: str, shows_images: bool) -> dict[int, str]:
    """Returns the text of each id of a character tokenizer."""
    characters = enumerate(charset + PLACE * shows_images, start=_FIRST_CHARACTER_ID)
    return {PAD_ID: "\ufffd", EOS_ID: "", **dict(characters)}
