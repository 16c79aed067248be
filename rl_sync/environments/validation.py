"""Calls an environment and checks its answers: an invalid answer becomes one clear error.

An environment is often a user's code. Each error names it, its method, the rule and the value.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any, NoReturn, get_args

from rl_sync.environments.interface import (
    ANEW,
    Environment,
    Message,
    Outcome,
    Reason,
    Reply,
    SeatedOutcome,
    Standing,
    ToolCall,
    Turn,
    players_of,
)

_SHOWN_CHARACTERS = 200


async def reset(environment: Environment, task: Mapping[str, Any], seed: int) -> Turn:
    """Begins an episode, and checks the first turn.

    Raises:
      ValueError: the environment did not return a proper turn. Its own exceptions are not caught.
    """
    return check_turn(environment, await _settled(environment.reset(task, seed)))


async def step(environment: Environment, reply: Reply) -> Turn | Outcome:
    """Gives a reply to the environment, and checks its answer.

    Raises:
      ValueError: the answer is neither a proper turn nor a proper outcome. The environment's own
        exceptions are not caught.
    """
    return check_answer(environment, await _settled(environment.step(reply)))


async def close(environment: Environment) -> None:
    """Closes an environment, whether its `close` is plain or `async`."""
    await _settled(environment.close())


def check_turn(environment: Environment, value: object) -> Turn:
    """Returns what `reset` returned.

    Raises:
      ValueError: it is not a proper `Turn`.
    """
    place = _Place(environment, "reset")
    if not isinstance(value, Turn):
        place.refuse("must return a Turn", value, "Return Turn(messages=(Message(...),)).")
    place.check_turn(value)
    if value.reward:
        place.refuse("must give no reward: no reply came before", value.reward, "Leave it out.")
    return value


def check_answer(environment: Environment, value: object) -> Turn | Outcome:
    """Returns what `step` returned.

    Raises:
      ValueError: it is neither a proper `Turn` nor a proper `Outcome`.
    """
    place = _Place(environment, "step")
    if isinstance(value, Turn):
        place.check_turn(value)
    elif isinstance(value, Outcome):
        place.check_outcome(value)
    else:
        way_out = "Return the new messages as a Turn, or the rewards as an Outcome."
        place.refuse("must return a Turn or an Outcome", value, way_out)
    return value


async def _settled(value: object) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Place:
    """A method of an environment, and the rules for what it returns."""

    def __init__(self, environment: Environment, method: str) -> None:
        self.name = f"{type(environment).__name__}.{method}()"
        self.players = players_of(environment)

    def refuse(self, rule: str, value: object, way_out: str) -> NoReturn:
        shown = repr(value)
        if len(shown) > _SHOWN_CHARACTERS:
            shown = f"{shown[:_SHOWN_CHARACTERS]}…"
        raise ValueError(f"The environment's {self.name} {rule}, not {shown}. {way_out}")

    def check_turn(self, turn: Turn) -> None:
        self._check_messages(turn.messages)
        if not turn.messages:
            self.refuse(
                "must return a Turn with a message",
                turn.messages,
                "Ask something, or end the episode with an Outcome.",
            )
        for tool in self._tuple("tools", turn.tools):
            self._check_tool(tool)
        for text in self._tuple("stop_strings", turn.stop_strings):
            if not isinstance(text, str) or not text:
                self.refuse("must give stop strings that are texts", text, "Leave it out.")
        deadline = turn.deadline_secs
        if deadline is not None and not (_is_finite(deadline) and deadline > 0):
            self.refuse(
                "must give deadline_secs above 0", deadline, "Use None for no limit of its own."
            )
        self._check_number("the reward of a turn", turn.reward)
        if type(turn.player) is not int or not 0 <= turn.player < self.players:
            rule = f"must give a player from 0 to {self.players - 1}"
            self.refuse(rule, turn.player, "A game of several players sets self.players in reset.")
        for move in self._tuple("moves", turn.moves):
            if not isinstance(move, str):
                self.refuse("must give moves that are texts", move, "Use str(...).")
        self._check_count("after", turn.after, ANEW)
        self._check_count("most_tokens", turn.most_tokens, 1)

    def check_outcome(self, outcome: Outcome) -> None:
        self._check_values(outcome)
        for standing in self._tuple("standings", outcome.standings):
            if not isinstance(standing, Standing):
                self.refuse("must give standings that are Standing records", standing, "Use them.")
            self._check_values(standing)
        is_seated = isinstance(outcome, SeatedOutcome)
        if outcome.standings and not is_seated and len(outcome.standings) != self.players:
            rule = f"must give a Standing of each of its {self.players} players"
            way_out = "A game of several players sets self.players in reset."
            self.refuse(rule, outcome.standings, way_out)
        if outcome.reason not in get_args(Reason):
            reasons = ", ".join(map(repr, get_args(Reason)))
            self.refuse("must give a known reason", outcome.reason, f"Choose one of {reasons}.")
        is_judged = outcome.rewards or outcome.standings
        if outcome.reason == "done" and not is_judged and not outcome.why:
            self.refuse(
                "must give a reward where the reason is 'done'",
                outcome.rewards,
                "Add one, or say in `why` why the episode could not be judged.",
            )
        self._check_messages(outcome.messages)
        if not isinstance(outcome.why, str):
            self.refuse("must say why in a text", outcome.why, "Use str(...).")

    def _check_values(self, record: Outcome | Standing) -> None:
        for field in ("rewards", "metrics"):
            values = getattr(record, field)
            if not isinstance(values, Mapping):
                self.refuse(f"must give {field} by name", values, f"Use {field}={{'name': 1.0}}.")
            for name, value in values.items():
                if not isinstance(name, str) or not name:
                    self.refuse(f"must give {field} names that are texts", name, "Name it.")
                self._check_number(f"{field}[{name!r}]", value)

    def _check_messages(self, messages: object) -> None:
        for message in self._tuple("messages", messages):
            if not isinstance(message, Message):
                self.refuse(
                    "must give messages that are Message records",
                    message,
                    "Use Message('user', 'text').",
                )
            for field in ("role", "content"):
                if not isinstance(getattr(message, field), str):
                    self.refuse(
                        f"must give messages whose {field} is a text", message, "Use str(...)."
                    )
            if not message.role:
                self.refuse("must give messages that have a role", message, "Use role='user'.")
            for call in self._tuple("tool_calls", message.tool_calls):
                if not isinstance(call, ToolCall):
                    self.refuse("must give tool_calls that are ToolCall records", call, "Use them.")

    def _check_tool(self, tool: object) -> None:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            self.refuse(
                "must give tools as JSON schemas of functions",
                tool,
                "Make them with rl_sync.environments.tools.Tool.of(function).schema.",
            )

    def _tuple(self, field: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            self.refuse(f"must give {field} as a tuple", value, f"Use {field}=(..., ).")
        return value

    def _check_count(self, field: str, value: object, least: int) -> None:
        if value is not None and not (type(value) is int and value >= least):
            self.refuse(f"must give {field} of at least {least}", value, "Leave it out.")

    def _check_number(self, what: str, value: object) -> None:
        if not _is_finite(value):
            self.refuse(
                f"must give {what} as a finite number",
                value,
                "Where nothing can be judged, leave it out, and give the reason.",
            )


def _is_finite(value: object) -> bool:
    # A number of numpy, also one of 32 bits, is a `Real`.
    return isinstance(value, numbers.Real) and math.isfinite(value)
