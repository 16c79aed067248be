"""Conversations, and their rendering: by a chat template, or plain for tokenizers without one."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from rl_sync.environments.dialogue.shielding import Shield
from rl_sync.environments.interface import Message, ToolSchema, Turn
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Conversation:
    """All that a chat template is given.

    Attributes:
      messages: the messages so far.
      tools: schemas of the tools that may be called.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSchema, ...] = ()

    def with_reply(self, reply: Message) -> Conversation:
        """Returns the conversation after a reply of the policy."""
        return dataclasses.replace(self, messages=(*self.messages, reply))

    def with_turn(self, turn: Turn) -> Conversation:
        """Returns the conversation after a turn of the environment."""
        tools = turn.tools if turn.after is not None else turn.tools or self.tools
        return Conversation((*self.messages, *turn.messages), tools)


class Renderer(Protocol):
    """Turns conversations into text, and that text into ids.

    Between the two, names of special tokens in contents are covered, as `cover` covers them.
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

        Names of special tokens in contents are encoded as text.
        """


class TemplateRenderer:
    """Renders by the chat template of a tokenizer of `transformers`.

    Args:
      tokenizer: a tokenizer whose prompts go through its template.
    """

    def __init__(self, tokenizer: PretrainedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._shield = Shield(tokenizer.special.names)

    def render(self, conversation: Conversation, prompts: bool) -> str:
        """Writes a conversation in the template.

        Raises:
          ValueError: the template refuses it, or has no place for its tools.
        """
        tools = conversation.tools
        if tools and "tools" not in self._tokenizer.template(has_tools=True):
            raise ValueError(
                "The environment has tools, but the tokenizer's chat template has no place for"
                " them, so the policy would not see them: describe them in a system message, and"
                " give Turn.tools=(), or use a template with tools."
            )
        # Roles are the environment's own words, which templates compare.
        messages = [
            self._shield.cover(message.for_template()) | {"role": message.role}
            for message in conversation.messages
        ]
        covered = [self._shield.cover(tool) for tool in tools]
        return self._tokenizer.render(messages, covered, prompts)

    def cover(self, text: str) -> str:
        """Returns a content with the names of special tokens in it covered."""
        return self._shield.cover(text)

    def encode(self, rendered: str, begins: bool) -> list[int]:
        """Encodes as `apply_chat_template` does, except that names in contents are text.

        Text between two special tokens of the template is encoded in one piece, even if it has a
        name in it: the name's neighbors merge with it as in any text.
        """
        pattern = self._tokenizer.special.pattern
        ids: list[int] = []
        done = start = 0
        matches = pattern.finditer(rendered) if pattern is not None else ()
        spans = [match.span() for match in matches] if self._shield.covers(rendered) else []
        for stop, following in [*spans, (len(rendered), len(rendered))]:
            run = rendered[start:stop]
            if self._shield.covers(run):
                ids += self._tokenizer.encode(rendered[done:start])
                ids += self._tokenizer.encode_literally(self._shield.uncover(run))
                done = stop
            start = following
        return ids + self._tokenizer.encode(rendered[done:])


class PlainRenderer:
    """Renders contents one after the other: for tokenizers without a chat template.

    Args:
      tokenizer: any tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, conversation: Conversation, prompts: bool) -> str:
        """Writes the contents; there are no roles, and a reply has no header.

        Raises:
          ValueError: there are tools, which have no place.
        """
        if conversation.tools:
            raise ValueError(
                "The environment has tools, but without a chat template they have no place in a"
                " prompt: use a tokenizer with a chat template, and not tokenizer.chat=no."
            )
        return "".join(message.content for message in conversation.messages)

    def cover(self, text: str) -> str:
        """Returns the content: no special token is written between contents."""
        return text

    def encode(self, rendered: str, begins: bool) -> list[int]:
        """Encodes the text, after the ids that the tokenizer begins a sequence with."""
        return self._tokenizer.encode_literally(rendered, begins=begins)


def renderer_of(tokenizer: Tokenizer) -> Renderer:
    """Makes the renderer of a tokenizer: by its template, if its prompts go through one."""
    if isinstance(tokenizer, PretrainedTokenizer) and tokenizer.chat:
        return TemplateRenderer(tokenizer)
    return PlainRenderer(tokenizer)
