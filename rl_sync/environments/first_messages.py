"""Makes the first messages of an episode from the prompt of a row."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rl_sync.environments.interface import Message, ToolCall
from rl_sync.images import Image, images_of
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.tokenizers.prompt_messages import messages_of


def first_messages(task: Mapping[str, Any], shows_images: bool = True) -> tuple[Message, ...]:
    """Returns the conversation that a row's prompt is, or its text as a user's message.

    If the conversation ends with a message of the assistant, the policy continues it.

    Args:
      task: the row.
      shows_images: whether the row's images stand at their places; otherwise they are left out.
    """
    asked, images = messages_of(task), images_of(task)
    if asked is None:
        shown = tuple(images) if shows_images else ()
        return (Message("user", str(task["prompt"]), images=shown),)
    rest = iter(images)
    messages = [_message(one, rest if images else None) for one in asked.messages]
    return tuple(messages if shows_images else map(_without_images, messages))


def _without_images(message: Message) -> Message:
    if not message.images:
        return message
    return dataclasses.replace(message, content=message.content.replace(PLACE, ""), images=())


def _message(one: Mapping[str, Any], images: Iterator[Image] | None) -> Message:
    content = one.get("content") or ""
    shown = () if images is None else tuple(next(images) for _ in range(content.count(PLACE)))
    return Message(
        role=one["role"],
        content=content,
        tool_calls=tuple(map(_call, one.get("tool_calls") or ())),
        name=one.get("name"),
        tool_call_id=one.get("tool_call_id"),
        images=shown,
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return ToolCall(function["name"], arguments, call.get("id"))
