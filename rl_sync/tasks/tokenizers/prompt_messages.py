"""Prompts that are conversations: their messages in a row, and their text and tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from rl_sync.images import images_of
from rl_sync.rewards.judgement import MESSAGES, TOOLS, Row
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.tokenizers.tokenizer import Messages, Schemas, Tokenizer

SYSTEM_ROLES = ("system", "developer")
_REMEMBERED_LENGTHS = 1 << 16


class PromptMessages(NamedTuple):
    """A prompt that is a conversation.

    Attributes:
      messages: messages as chat templates of `transformers` take them; contents are texts, with
        U+FFFC where an image of the row stands. If the last one is the assistant's, it is a reply
        that the policy continues.
      tools: JSON schemas of the tools that the assistant may call.
    """

    messages: Messages
    tools: Schemas = ()

    @property
    def text(self) -> str:
        """The conversation as a reader sees it; of one user's message, its content."""
        if [one["role"] for one in self.messages] == ["user"]:
            return str(self.messages[0]["content"])
        return "\n\n".join(map(_readable, self.messages))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a row that hold the conversation."""
        tools = {TOOLS: list(self.tools)} if self.tools else {}
        return {MESSAGES: list(self.messages), **tools}

    @property
    def key(self) -> str:
        """A text that is equal for equal conversations, and from which `of_key` makes them."""
        return json.dumps([self.messages, self.tools], ensure_ascii=False)

    @classmethod
    def of_key(cls, key: str) -> PromptMessages:
        """Inverts `key`."""
        return cls(*json.loads(key))


def messages_of(row: Row | None) -> PromptMessages | None:
    """Returns the conversation that a row's prompt is; None if the prompt is one text."""
    if row is None or not row.get(MESSAGES):
        return None
    return PromptMessages(row[MESSAGES], row.get(TOOLS) or ())


def is_begun(row: Row | None) -> bool:
    """Says whether a row's prompt ends with a reply that the policy continues."""
    asked = messages_of(row)
    return asked is not None and asked.messages[-1]["role"] == "assistant"


def identity(text: str, row: Row | None) -> Hashable:
    """Returns a key that is equal for prompts with the same text, messages and images."""
    asked = messages_of(row)
    return (text, None if asked is None else asked.key, *images_of(row or {}))


def _without_images(row: Row | None) -> PromptMessages | None:
    """Returns the conversation of a row as a policy without vision reads it."""
    asked = messages_of(row)
    if asked is None or not images_of(row or {}):
        return asked
    texts = (
        {"content": str(one.get("content") or "").replace(PLACE, "")} for one in asked.messages
    )
    return asked._replace(
        messages=[{**one, **text} for one, text in zip(asked.messages, texts, strict=True)]
    )


def encode_asked(tokenizer: Tokenizer, text: str, row: Row | None = None) -> list[int]:
    """Encodes a prompt without images: the conversation of its row, or otherwise its text.

    Raises:
      ValueError: the chat template rejects the conversation.
    """
    asked = _without_images(row)
    return tokenizer.encode_prompt(text) if asked is None else tokenizer.encode_messages(*asked)


def asked_tokens(tokenizer: Tokenizer, text: str, row: Row | None = None) -> int:
    """Counts the tokens of a prompt without images; it raises as `encode_asked` does."""
    asked = _without_images(row)
    return _length(tokenizer, text, None if asked is None else asked.key)


# Loading a task needs the same lengths several times, and encoding takes most of its time.
@functools.lru_cache(maxsize=_REMEMBERED_LENGTHS)
def _length(tokenizer: Tokenizer, text: str, key: str | None) -> int:
    if key is None:
        return len(tokenizer.encode_prompt(text))
    return len(tokenizer.encode_messages(*PromptMessages.of_key(key)))


def _readable(message: Mapping[str, Any]) -> str:
    calls = [_called(call) for call in message.get("tool_calls") or ()]
    said = [one for one in (message.get("content"), *calls) if one]
    return f"{message['role']}: " + "\n".join(map(str, said))


def _called(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return f"{function['name']}({arguments})"
