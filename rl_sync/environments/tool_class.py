"""Adapter for classes of tools with the interface of TRL's environments.

Such a class has `reset(**row)`, which may return a text; each other public method is a tool; and
`reward`, an attribute or a method, or `get_reward()`, judges the episode when it has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.environments.first_messages import first_messages
from rl_sync.environments.interface import Message, Outcome, Reply
from rl_sync.environments.tools import ToolEnvironment
from rl_sync.tasks.tokenizers.prompt_messages import messages_of

_REWARDS = ("reward", "get_reward")
_NOT_TOOLS = {"reset", "close", "warm_up", *_REWARDS}
_CALL_SECS = 10.0


def is_tool_class(made: object) -> bool:
    """Says whether an object has this interface: `reset` and a reward, and no `step`."""
    return (
        callable(getattr(made, "reset", None))
        and not hasattr(made, "step")
        and any(hasattr(made, name) for name in _REWARDS)
    )


class ToolClass(ToolEnvironment):
    """An environment of the tools of an object; a reply without calls ends the episode.

    The first messages are the row's `prompt`, a text or a list of messages. A text that `reset`
    returns is appended to the user's last message.

    Args:
      made: the object. Its methods may be `async`. Its attribute `call_secs` limits a tool call.
      name: its name in messages.

    Raises:
      ValueError: it has no tools, or a tool has no schema.
    """

    def __init__(self, made: Any, name: str) -> None:
        tools = [_plain(getattr(made, tool)) for tool in _tools(made)]
        if not tools:
            raise ValueError(f"{name} has no tools: give it a public method with a docstring.")
        super().__init__(tools, getattr(made, "call_secs", _CALL_SECS))
        self._made, self._name = made, name

    def question(self, task: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Resets the object with the row, and with `seed` if it takes one.

        Raises:
          ValueError: there is no prompt and no text, or they have another type.
        """
        reset = _plain(self._made.reset)
        text = reset(**_accepted(reset, {"seed": seed, **task}, set(task)))
        if not isinstance(text, str | None):
            raise ValueError(f"{self._name}.reset must return a text or None, not {text!r}.")
        messages = _messages(task, self._name)
        if text:
            messages = _appended(messages, text)
        if not messages:
            raise ValueError(
                f"{self._name}: the row has no 'prompt', and reset returned no text: one of them"
                " must begin the episode."
            )
        return tuple(messages)

    def outcome(self, reply: Reply) -> Outcome:
        """Takes the object's reward, or its rewards by name.

        Raises:
          ValueError: the reward is neither a number nor a mapping.
        """
        found = next(getattr(self._made, name) for name in _REWARDS if hasattr(self._made, name))
        reward = _plain(found)() if callable(found) else found
        if isinstance(reward, Mapping):
            return Outcome(rewards=dict(reward))
        if not isinstance(reward, numbers.Real):
            raise ValueError(
                f"{self._name}: the reward must be a number, or numbers by name, not {reward!r}."
            )
        return Outcome(rewards={"reward": float(reward)})

    def close(self) -> None:
        """Calls the object's `close`, if it has one."""
        if callable(close := getattr(self._made, "close", None)):
            _plain(close)()


def _tools(made: object) -> list[str]:
    """Returns the names of the public methods, without reading properties."""
    routines = inspect.getmembers_static(type(made), _is_routine)
    return [
        name
        for name, member in routines
        if not name.startswith("_")
        and name not in _NOT_TOOLS
        # A class method `check` checks options; see `Construction`.
        and not (name == "check" and isinstance(member, classmethod))
    ]


def _is_routine(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, staticmethod | classmethod)


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is not `async`, with the same signature and docstring."""
    if not inspect.iscoroutinefunction(method):
        return method

    @functools.wraps(method)
    def run(*args: object, **kwargs: object) -> Any:
        return asyncio.run(method(*args, **kwargs))

    return run


def _accepted(
    function: Callable[..., Any], values: Mapping[str, Any], row: set[str]
) -> dict[str, Any]:
    """Returns the values that a function takes; a function with `**` gets the whole row."""
    parameters = inspect.signature(function).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {
        name: value
        for name, value in values.items()
        if name in parameters or (takes_any and name in row)
    }


def _messages(task: Mapping[str, Any], name: str) -> list[Message]:
    prompt = task.get("prompt")
    if messages_of(task) is not None:
        return list(first_messages(task, shows_images=False))
    if prompt is None or isinstance(prompt, str):
        return [Message("user", prompt)] if prompt else []
    try:
        return [Message(one["role"], one["content"]) for one in prompt]
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"{name}: the row's 'prompt' must be a text, or a list of messages with role and"
            f" content, not {prompt!r}."
        ) from error


def _appended(messages: list[Message], text: str) -> list[Message]:
    if not messages or messages[-1].role != "user":
        return [*messages, Message("user", text)]
    last = messages[-1]
    return [*messages[:-1], dataclasses.replace(last, content=last.content + text)]
