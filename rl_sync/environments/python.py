"""Python as a tool: the policy writes code, which runs in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.environments.dialogue.excerpts import excerpt
from rl_sync.environments.first_messages import first_messages
from rl_sync.environments.interface import Message, Outcome, Reply, Turn
from rl_sync.environments.tools import Tool, ToolEnvironment
from rl_sync.sandbox.interpreter import Interpreter
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_process import START_SECS
from rl_sync.sandbox.sandbox import ProgramRun

NAME, _ARGUMENT = "python", "code"
_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": (
            "Runs Python code, and returns what it prints, the value of its last expression, and"
            " its errors. Each call starts anew: nothing is kept from earlier calls."
        ),
        "parameters": {
            "type": "object",
            "properties": {_ARGUMENT: {"type": "string", "description": "The code to run."}},
            "required": [_ARGUMENT],
        },
    },
}


def python_tool(interpreter: Interpreter | None = None, characters: int = 4000) -> Tool:
    """Makes the tool `python`, whose argument `code` runs in a sandbox.

    The answer is what the code prints and the value of its last expression, then its errors. A
    longer answer keeps its beginning and its end. Calls share nothing.

    Args:
      interpreter: the limits and the sandbox; the default ones if left out.
      characters: maximum number of characters of an answer.

    Raises:
      SandboxError: no sandbox works here.
      ValueError: `characters` is too small.
    """
    made = interpreter or Interpreter()
    if characters < 100:
        raise ValueError(f"characters={characters} of Python's answers must be at least 100.")
    made.prepare()

    def run(code: str) -> str:
        finished = made.run(code)
        return _answer(finished, made.fault(finished), characters)

    return Tool(NAME, run, _SCHEMA, call_secs=made.seconds + START_SECS + 1.0)


class Python(ToolEnvironment):
    """Asks the row's `prompt`; the policy may run Python before it answers.

    A reply without calls ends the episode. There are no rewards: `task.reward` judges that reply.
    The metric `calls` counts calls, `malformed` those that could not be read.

    Args:
      seconds, memory_mib, processes, packages, layer, unsandboxed: see
        `rl_sync.sandbox.interpreter.Interpreter`.
      characters: maximum number of characters of an answer of Python.
      reply_secs: the time limit of all calls of a reply together.

    Raises:
      SandboxError: no sandbox works here.
      ValueError: an option has no such value.
    """

    # The templates of some families refuse a tool's answer to a reply without a proper call.
    malformed_role = "user"

    def __init__(
        self,
        seconds: float = 5.0,
        memory_mib: int = 512,
        processes: int = 32,
        packages: bool = False,
        layer: str = "auto",
        unsandboxed: bool = False,
        characters: int = 4000,
        reply_secs: float = 20.0,
    ) -> None:
        if seconds > reply_secs:
            raise ValueError(
                f"seconds={seconds:g} of a call must be at most reply_secs={reply_secs:g}; raise"
                " reply_secs, and environment.limit_secs above it."
            )
        interpreter = Interpreter(
            seconds=seconds,
            memory_mib=memory_mib,
            processes=processes,
            packages=packages,
            layer=layer,
            unsandboxed=unsandboxed,
        )
        super().__init__([python_tool(interpreter, characters)], reply_secs=reply_secs)
        self._calls, self._malformed = 0, 0

    @classmethod
    def check(cls, **options: Any) -> None:
        """Checks the options, and that a sandbox works here.

        Raises:
          ValueError: an option has no such value, or no sandbox works.
        """
        try:
            cls(**options)
        except SandboxError as error:
            raise ValueError(f"environment.name=python cannot run code: {error}") from error

    def question(self, task: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Asks the prompt of the row."""
        del seed
        self._calls, self._malformed = 0, 0
        return first_messages(task, shows_images=False)

    def step(self, reply: Reply) -> Turn | Outcome:
        """Counts and answers the calls of a reply, or ends the episode."""
        self._calls += len(reply.tool_calls)
        self._malformed += len(reply.malformed)
        return super().step(reply)

    def outcome(self, reply: Reply) -> Outcome:
        """Ends the episode, and leaves its judgement to the task's reward."""
        del reply
        return Outcome(
            {},
            {"calls": self._calls, "malformed": self._malformed},
            why="the environment python gives no rewards: task.reward judges the last reply",
        )


def _answer(run: ProgramRun, fault: str, characters: int) -> str:
    """Writes the answer of a finished run."""
    parts = [part.decode(errors="replace").strip("\n") for part in (run.stdout, run.stderr)]
    if run.stopped or (fault and not parts[1]):
        parts.append(f"Error: {fault}.")
    return excerpt("\n".join(part for part in parts if part), characters) or "(no output)"
