"""Tools: Python functions that the policy calls, and an environment that answers its calls."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_sync.environments.interface import Message, Outcome, Reply, ToolCall, Turn
from rl_sync.environments.schemas import function_schema, wrong_arguments
from rl_sync.images import Image
from rl_sync.sandbox.layer import SandboxError


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that the policy may call.

    Attributes:
      name: its name in calls.
      function: a plain function or a bound method, called with JSON values by name.
      schema: its JSON schema.
      call_secs: the time limit of a call; None for the toolbox's limit.
    """

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]
    call_secs: float | None = None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """Makes the tool of a function; see `function_schema` for what it must have.

        Raises:
          ValueError: the function has no schema, or is `async`.
        """
        if inspect.iscoroutinefunction(function):
            raise ValueError(
                f"The tool {function.__name__} is async, but tools are called in threads of their"
                " own: make it plain, and call asyncio.run in it."
            )
        schema = function_schema(function)
        return cls(schema["function"]["name"], function, schema)


class Toolbox:
    """Answers calls of tools; an error in a call is an answer, too.

    Only a `SandboxError` is raised, since it says nothing about the call.

    Each call has a thread of its own and a time limit, which starts with the thread. Calls may come
    from several threads. A call that takes longer is answered with an error and left alone: Python
    cannot interrupt a thread. It goes on in the background, keeps its resources, and may still
    change what it has access to. Nor does the limit hold for native code that keeps the
    interpreter's lock. What must really end, such as a program that the policy wrote, belongs in a
    process, with the tool only waiting for it: see `rl_sync.environments.python.python_tool` and
    `rl_sync.environments.sandboxed.sandboxed`.

    Args:
      functions: functions, or tools that were made before.
      call_secs: the time limit of a call, for tools that have none of their own.

    Raises:
      ValueError: two tools have the same name; a function has no schema; or the limit is not above
        0.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any] | Tool], call_secs: float = 10.0
    ) -> None:
        tools = [f if isinstance(f, Tool) else Tool.of(f) for f in functions]
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            names = ", ".join(tool.name for tool in tools)
            raise ValueError(f"Tools need names of their own, not {names}: rename one.")
        if not call_secs > 0:
            raise ValueError(f"The time limit of a call must be above 0 s, not {call_secs}.")
        self._call_secs = call_secs
        self._left: list[threading.Thread] = []

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The schemas of the tools, for `Turn.tools`."""
        return tuple(tool.schema for tool in self._tools.values())

    @property
    def calls_left_alone(self) -> int:
        """The number of calls that took too long and still run."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def answer(self, call: ToolCall, most_secs: float = math.inf) -> Message:
        """Runs a call, and returns the tool's message: the result, or the error.

        The result is written as text; an `Image`, or a list of texts and images, stays one.

        Args:
          call: the call.
          most_secs: the time that is left, if that is less than the time limit.

        Raises:
          SandboxError: the sandbox of a tool failed.
        """
        content: Any = self._answer(call, most_secs)
        return Message("tool", content, name=call.name, tool_call_id=call.call_id)

    def _answer(self, call: ToolCall, most_secs: float) -> str | list[str | Image]:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"Error: there is no tool {call.name!r}; the tools are {', '.join(self._tools)}."
        wrong = wrong_arguments(tool.schema, call.arguments)
        if wrong is not None:
            return f"Error: in a call of {call.name}, {wrong}."
        if most_secs <= 0:
            return f"Error: {call.name} was not called: no time was left for this reply's calls."
        answers: list[str | list[str | Image] | SandboxError] = []
        thread = threading.Thread(
            target=lambda: answers.append(_result(tool.function, call.arguments)),
            name=f"tool {call.name}",
            # A call that never ends must not keep the process from ending.
            daemon=True,
        )
        limit_secs = min(tool.call_secs or self._call_secs, most_secs)
        thread.start()
        thread.join(limit_secs)
        if not answers:
            self._left.append(thread)
            return f"Error: {call.name} did not answer within {limit_secs:.4g} s."
        if isinstance(answers[0], SandboxError):
            raise answers[0]
        return answers[0]


class ToolEnvironment(abc.ABC):
    """An environment of tools, to be derived from: `question` begins, `outcome` judges.

    A reply with tool calls gets their answers, in their order; a reply without calls ends the
    episode. A malformed call is answered with its error. That answer has the role `tool` if the
    reply also has a proper call, and otherwise `malformed_role`.

    Methods of the derived class can be tools, so that calls see the episode's state:
    `super().__init__([self.look, self.open])`. See `Toolbox` for the time limit.

    Attributes:
      malformed_role: the role that answers a reply whose calls are all malformed. The templates of
        Mistral need `user`: they refuse a tool's answer to a reply without a call.

    Args:
      functions, call_secs: see `Toolbox`.
      reply_secs: the time limit of all calls of a reply together. Keep it below
        `environment.limit_secs`, which costs the episode, not the call.

    Raises:
      ValueError: as `Toolbox`, or `reply_secs` is not above 0.
    """

    malformed_role = "tool"

    def __init__(
        self,
        functions: Sequence[Callable[..., Any] | Tool],
        call_secs: float = 10.0,
        reply_secs: float = 20.0,
    ) -> None:
        self.toolbox = Toolbox(functions, call_secs)
        if not reply_secs > 0:
            raise ValueError(
                f"The time limit of a reply's calls must be above 0 s, not {reply_secs}."
            )
        self._reply_secs = reply_secs

    @abc.abstractmethod
    def question(self, task: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Begins an episode, and returns its first messages."""

    @abc.abstractmethod
    def outcome(self, reply: Reply) -> Outcome:
        """Judges the reply that calls no tool, and with it the episode."""

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins an episode, with all tools."""
        return Turn(self.question(task, seed), tools=self.toolbox.schemas)

    def step(self, reply: Reply) -> Turn | Outcome:
        """Answers the calls of a reply, or ends the episode."""
        if not reply.tool_calls and not reply.malformed:
            return self.outcome(reply)
        deadline = time.monotonic() + self._reply_secs
        answers = [
            self.toolbox.answer(call, deadline - time.monotonic()) for call in reply.tool_calls
        ]
        role = "tool" if reply.tool_calls else self.malformed_role
        errors = [Message(role, f"Error: {error}") for error in reply.malformed]
        return Turn((*answers, *errors))

    def close(self) -> None:  # noqa: B027 (there is a default)
        """Does nothing; derived environments release their resources here."""


def _result(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> str | list[str | Image] | SandboxError:
    try:
        found = function(**arguments)
        if isinstance(found, Image):
            found = [found]
        if isinstance(found, list | tuple) and any(isinstance(one, Image) for one in found):
            return [one if isinstance(one, Image) else _encodable(_text(one)) for one in found]
        text = _text(found)
    except SandboxError as error:
        return error
    except BaseException as error:  # SystemExit too: the policy reads it, and nobody else would.
        text = f"Error: {type(error).__name__}: {error}"
    return _encodable(text)


def _encodable(text: str) -> str:
    """Replaces halves of surrogate pairs, which tokenizers refuse."""
    return text.encode(errors="replace").decode()


def _text(result: object) -> str:
    return (
        result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    )
