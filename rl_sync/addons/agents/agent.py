"""Runs agents as environments: users' programs, which ask an endpoint for replies.

This is the part in a worker process; it runs one episode's agent to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import numbers
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rl_sync.environments.interface import Message, Outcome, Reply, Turn
from rl_sync.isolation.process_limits import kill_group_mates
from rl_sync.references import is_reference, resolve

_INTERPRETER = re.compile(r"python[\d.]*|node|ruby|perl|bash|sh")  # Then comes a file, or a flag.
_LAST_LINES = 12
_LAST_CHARACTERS = 2000
_READ_BYTES = 1 << 16
_READ_SECS = 1.0
_BEGUN = Turn((Message("user", "begun"),))
_NOT_JUDGED = Outcome({}, why="the agent posted no outcome, and its episode is judged by one")


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """Settings of an agent's client of OpenAI.

    Attributes:
      base_url: the endpoint of the episode.
      api_key: the key of the episode.
      model: a name of the model.
      seed: the seed of the episode, for the agent's own random choices.
    """

    base_url: str
    api_key: str
    model: str
    seed: int


class Agent:
    """Runs a program, or calls a function, which asks an endpoint for replies.

    The endpoint serves clients of OpenAI and of Anthropic. A program finds it in `OPENAI_BASE_URL`,
    `OPENAI_API_KEY` and `OPENAI_MODEL`, or in `ANTHROPIC_BASE_URL` and so on, a seed in
    `RL_SYNC_SEED`, and the row of data as JSON on its standard input and in the file
    `RL_SYNC_ROW`. A function is called with the row and `ClientSettings`; it may be `async`, and
    may return a reward, or rewards by name. docs/agents.md has an example.

    Args:
      command: the program with its arguments, as in a shell; no shell reads it.
      function: `module:function` or `path/to/file.py:function`, instead of a command.
      deadline_secs: maximum time of an episode, including the policy's replies.
      separate_reasoning: whether the reasoning of replies is a separate field, and not part of
        their content.
    """

    asks_endpoint = True

    def __init__(
        self,
        command: str | None = None,
        function: str | None = None,
        deadline_secs: float = 600.0,
        separate_reasoning: bool = False,
    ) -> None:
        self._command, self._function = command, function
        self.deadline_secs, self.separate_reasoning = deadline_secs, separate_reasoning
        self._episode: Mapping[str, Any] = {}

    @classmethod
    def check(
        cls,
        command: str | None = None,
        function: str | None = None,
        deadline_secs: float = 600.0,
        separate_reasoning: bool = False,
    ) -> None:
        """Checks options before a run.

        Raises:
          ValueError: there is no such program or function, or an option's value is invalid.
        """
        if command is not None and function is not None:
            raise ValueError(
                f"The environment agent takes command={command!r} or function={function!r}, and not"
                " both: leave one of them out."
            )
        if command is None and function is None:
            raise ValueError(
                "The environment agent needs a program or a function: agent(command='python"
                " my_agent.py') or agent(function='my_agent.py:play')."
            )
        check_limits("agent", deadline_secs, separate_reasoning)
        if function is not None:
            if not is_reference(function):
                raise ValueError(
                    f"agent(function={function!r}) must name a function, as in module:function or"
                    " path/to/file.py:function."
                )
            resolve(function)
            return
        _require_program(command)

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Stores the episode's row; the first `step` runs the agent."""
        self._episode = {**task, "seed": seed}
        return _BEGUN

    def step(self, reply: Reply) -> Outcome:
        """Runs the agent to its end; returns the rewards that a function gives, if any."""
        del reply
        episode = self._episode
        settings = ClientSettings(
            episode["base_url"], episode["key"], episode["model"], episode["seed"]
        )
        row = Path(episode["row_path"])
        return self._played(row, settings, _variables(settings, episode["row_path"]))

    def _played(self, row: Path, settings: ClientSettings, variables: Mapping[str, str]) -> Outcome:
        """Plays an episode, whose row is in a file."""
        if self._command is not None:
            return _run(shlex.split(self._command), variables, row)
        assert self._function is not None, "one of both was given"
        os.environ.update(variables)
        return _outcome(_called(self._function, row, settings))

    def close(self) -> None:
        """Kills the processes that the agent left running."""
        kill_group_mates()


def check_limits(name: str, deadline_secs: object, separate_reasoning: object) -> None:
    """Checks the options that all environments have that ask the endpoint.

    Args:
      name: the environment's name.

    Raises:
      ValueError: an option's value is invalid.
    """
    if not isinstance(deadline_secs, int | float) or not deadline_secs > 0:
        raise ValueError(
            f"{name}(deadline_secs={deadline_secs!r}) must be a number of seconds above 0."
        )
    if not isinstance(separate_reasoning, bool):
        raise ValueError(
            f"{name}(separate_reasoning={separate_reasoning!r}) must be True or False."
        )


def _require_program(command: Any) -> None:
    try:
        words = shlex.split(command)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"agent(command={command!r}) cannot be read: {error}.") from error
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        raise ValueError(
            f"agent(command={command!r}) names the program {program!r}, which is neither on PATH"
            f" nor an executable file (the current directory is {Path.cwd()})."
        )
    script = words[1] if len(words) > 1 and _INTERPRETER.fullmatch(Path(words[0]).name) else "-"
    if not script.startswith("-") and not Path(script).exists():
        raise ValueError(
            f"agent(command={command!r}) runs {script!r}, and there is no such file (the current"
            f" directory is {Path.cwd()})."
        )


def _variables(settings: ClientSettings, row_path: str) -> dict[str, str]:
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    host = urllib.parse.urlsplit(settings.base_url).hostname or ""
    hosts = without if host in without.split(",") else ",".join(filter(None, [without, host]))
    return {
        "OPENAI_BASE_URL": settings.base_url,
        "OPENAI_API_KEY": settings.api_key,
        "OPENAI_MODEL": settings.model,
        # Clients of Anthropic write the version of the protocol themselves.
        "ANTHROPIC_BASE_URL": settings.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": settings.api_key,
        "ANTHROPIC_MODEL": settings.model,
        "RL_SYNC_ROW": row_path,
        "RL_SYNC_SEED": str(settings.seed),
        # Requests to the endpoint must not use a proxy.
        **dict.fromkeys(("no_proxy", "NO_PROXY"), hosts),
    }


def _run(words: list[str], variables: Mapping[str, str], row_path: Path) -> Outcome:
    """Runs a program in this process's group; its output goes to the log."""
    with row_path.open("rb") as row:
        process = subprocess.Popen(
            words,
            stdin=row,
            stdout=sys.stderr.fileno(),
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
        )
    assert process.stderr is not None, "it was asked for"
    tail = _Tail(process.stderr)
    status = process.wait()
    last_words = tail.text()
    if not status:
        return _NOT_JUDGED
    how = f"exit code {status}" if status > 0 else f"signal {-status}"
    why = f"the agent ended with {how}: {last_words or 'it wrote no error'}"
    return Outcome({}, reason="environment failure", why=why)


class _Tail:
    """Passes a program's error output on, and keeps its last lines."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, b""
        self._thread = threading.Thread(target=self._read, name="errors", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Returns the last lines, once the program has ended."""
        self._thread.join(_READ_SECS)  # A process that the program left may hold the stream open.
        lines = self._last.decode(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:].strip()

    def _read(self) -> None:
        while data := os.read(self._stream.fileno(), _READ_BYTES):
            self._last = (self._last + data)[-4 * _LAST_CHARACTERS :]
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), data)


def _called(function: str, row: Path, settings: ClientSettings) -> Any:
    found = resolve(function)(json.loads(row.read_text()), settings)
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found: Any) -> Any:
    return await found


def _outcome(found: object) -> Outcome:
    """Makes an outcome of what a function returned; the host checks its rewards."""
    if found is None:
        return _NOT_JUDGED
    if isinstance(found, Mapping):
        # A mapping without rewards judges nothing.
        return Outcome(dict(found)) if found else _NOT_JUDGED
    if isinstance(found, numbers.Real):
        return Outcome({"reward": float(found)})
    raise TypeError(f"An agent's function returns None, a number or rewards by name, not {found!r}")
