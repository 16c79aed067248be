"""Conversations, and their rendering: by a chat template, or plain for tokenizers without one."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Protocol

from rl_sync.environments.interface import Message, ToolSchema, Turn
from rl_sync.images import Image
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.pictures.tile_processor import PictureMarks
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer
from rl_sync.tasks.tokenizers.special_tokens import Shield
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer

_OPEN = "\U000f0003"
"""First character of an image's mark; contents must have it covered."""

_CLOSE = "\U000f0004"
_IMAGE_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
"""Mark that stands for an image in a rendered conversation, until its tokens take its place."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """All that a chat template is given.

    Attributes:
      messages: the messages so far.
      tools: schemas of the tools that may be called.
      is_begun: whether the last message is a reply that the policy continues.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    is_begun: bool = False

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of all messages, in order; a mark's number counts in them."""
        return tuple(itertools.chain.from_iterable(one.images for one in self.messages))

    def with_reply(self, reply: Message) -> Conversation:
        """Returns the conversation after a reply of the policy, or after the rest of one."""
        before = self.messages
        if self.is_begun:
            content = before[-1].content + reply.content
            reply, before = dataclasses.replace(reply, content=content), before[:-1]
        return Conversation((*before, reply), self.tools)

    def with_turn(self, turn: Turn) -> Conversation:
        """Returns the conversation after a turn of the environment."""
        is_request = turn.after is not None
        tools = turn.tools if is_request else turn.tools or self.tools
        # In an agent's request, the last message of the assistant is one of the history.
        is_begun = not is_request and turn.messages[-1].role == "assistant"
        return Conversation((*self.messages, *turn.messages), tools, is_begun)


class Renderer(Protocol):
    """Turns conversations into text, and that text into ids.

    Between the two, names of special tokens in contents are covered, as `cover` covers them, and
    marks stand for images.
    """

    def render(self, conversation: Conversation, prompts: bool) -> str:
        """Writes a conversation; `prompts` adds the header of the policy's reply.

        Raises:
          ValueError: the conversation cannot be written.
        """

    def cover(self, text: str) -> str:
        """Returns a content as it stands in a rendered conversation."""

    def encode(self, rendered: str, begins: bool) -> list[int]:
        """Encodes a rendered conversation or a part of one; `begins` says if it is the beginning.

        Names of special tokens in contents are encoded as text. There are no marks of images.
        """


class TemplateRenderer:
    """Renders by the chat template of a tokenizer of `transformers`.

    Args:
      tokenizer: a tokenizer whose prompts go through its template.
      marks: tokens of images; None for text alone.
    """

    def __init__(self, tokenizer: PretrainedTokenizer, marks: PictureMarks | None = None) -> None:
        self._tokenizer, self._marks = tokenizer, marks
        self._shield = Shield((_OPEN, *tokenizer.special.names))

    def render(self, conversation: Conversation, prompts: bool) -> str:
        """Writes a conversation in the template.

        Raises:
          ValueError: the template refuses it, or has no place for its tools or its images.
        """
        tools = conversation.tools
        if tools and "tools" not in self._tokenizer.template(has_tools=True):
            raise ValueError(
                "The conversation has tools, but the tokenizer's chat template has no place for"
                " them, so the policy would not see them: describe them in a system message instead"
                " of giving them, or use a template with tools."
            )
        # Roles are the environment's own words, which templates compare.
        covered_messages = (
            self._shield.cover(message.for_template()) | {"role": message.role}
            for message in conversation.messages
        )
        messages = [
            self._tokenizer.with_parts(covered, shows=bool(message.images))
            for covered, message in zip(covered_messages, conversation.messages, strict=True)
        ]
        continues = prompts and conversation.is_begun
        if continues:
            begun = conversation.messages[-1]
            messages[-1] = self._tokenizer.with_parts(begun.for_template(), bool(begun.images))
        covered = [self._shield.cover(tool) for tool in tools]
        rendered = self._tokenizer.render(messages, covered, prompts, continues)
        images = len(conversation.images)
        return self._with_marks(rendered, images) if images else rendered

    def _with_marks(self, rendered: str, images: int) -> str:
        """Writes marks in place of the template's own tokens of images."""
        token = None if self._marks is None else self._marks.template
        found = 0 if token is None else rendered.count(token)
        if token is None or found != images:
            raise ValueError(
                f"The chat template writes {found} of the {images} images of a conversation: show"
                " images in messages of the user, or use the template of the vision-language"
                " model's checkpoint."
            )
        return _marked(rendered, 0, place=token)

    def cover(self, text: str) -> str:
        """Returns a content with the names of special tokens in it covered."""
        return self._shield.cover(text)

    def encode(self, rendered: str, begins: bool) -> list[int]:
        """Encodes as `apply_chat_template` does, except that names in contents are text.

        Text between two special tokens of the template is encoded in one piece, even if it has a
        name in it: the name's neighbors merge with it as in any text.
        """
        encode = self._tokenizer.encode_covered if begins else self._tokenizer.encode_behind
        return encode(rendered, self._shield)


class PlainRenderer:
    """Renders contents one after the other: for tokenizers without a chat template.

    Args:
      tokenizer: any tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = tokenizer.special.names if isinstance(tokenizer, PretrainedTokenizer) else ()
        self._shield = Shield((_OPEN, *names))

    def render(self, conversation: Conversation, prompts: bool) -> str:
        """Writes the contents; there are no roles, and a reply has no header.

        Raises:
          ValueError: there are tools, which have no place.
        """
        if conversation.tools:
            raise ValueError(
                "The conversation has tools, but without a chat template they have no place in a"
                " prompt: use a tokenizer with a chat template, and not tokenizer.chat=no."
            )
        written, images = "", 0
        for message in conversation.messages:
            content = self._shield.cover(message.content)
            written += _marked(content, images) if message.images else content
            images += len(message.images)
        return written

    def cover(self, text: str) -> str:
        """Returns a content with the names of special tokens in it covered."""
        return self._shield.cover(text)

    def encode(self, rendered: str, begins: bool) -> list[int]:
        """Encodes the text, after the ids that the tokenizer begins a sequence with.

        Only the tokens around images are special.
        """
        tokenizer = self._tokenizer
        if isinstance(tokenizer, PretrainedTokenizer):
            pattern = tokenizer.special.pattern
            if pattern is not None and pattern.search(rendered):
                opening = tokenizer.encode_literally("", begins=begins)
                return opening + tokenizer.encode_covered(rendered, self._shield)
        return tokenizer.encode_literally(self._shield.uncover(rendered), begins=begins)


def renderer_of(tokenizer: Tokenizer, marks: PictureMarks | None = None) -> Renderer:
    """Makes the renderer of a tokenizer: by its template, if its prompts go through one.

    Args:
      marks: tokens of images in a pretrained vocabulary; None for text alone.
    """
    if isinstance(tokenizer, PretrainedTokenizer) and tokenizer.chat:
        return TemplateRenderer(tokenizer, marks)
    return PlainRenderer(tokenizer)


def _marked(text: str, first: int, place: str = PLACE) -> str:
    """Writes marks at the places of images, with numbers from `first` on."""
    before, *others = text.split(place)
    return before + "".join(f"{_OPEN}{first + i}{_CLOSE}{text}" for i, text in enumerate(others))


def has_marks(rendered: str) -> bool:
    """Says whether a text has images."""
    return _OPEN in rendered


def texts_and_numbers(rendered: str) -> tuple[Sequence[str], Sequence[int]]:
    """Returns the texts around images, and the images' numbers."""
    parts = _IMAGE_MARK.split(rendered)
    return parts[::2], [int(number) for number in parts[1::2]]
