"""Environment wrapper that checks answers, and returns faults as answers."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.environments.game_table import GameTable
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.host import Failure, Kind, Result
from rl_sync.environments.hosts.plain_data import plain
from rl_sync.environments.interface import Environment, Outcome, Reply, SeatedOutcome, Turn
from rl_sync.environments.opponents import Seating
from rl_sync.environments.validation import check_answer, check_turn

_LAST_LINES = 12
_LAST_CHARACTERS = 2000


class Guarded:
    """One environment, from `reset` to `close`; its methods may be `async`.

    Args:
      construction: makes the environment, at `reset`.
      runner: runs coroutines. All coroutines of an environment run in one event loop.
    """

    def __init__(self, construction: Construction, runner: asyncio.Runner) -> None:
        self._construction = construction
        self._runner = runner
        self._environment: Environment | None = None
        self._table: Environment | GameTable | None = None

    def reset(self, task: Mapping[str, Any], seed: int, seating: Seating | None = None) -> Result:
        """Makes the environment and returns its first turn, or why there is none.

        Args:
          seating: the players, if it is a game of several.
        """

        def call() -> Any:
            made = self._environment = self._construction.make()
            self._table = made if seating is None else GameTable(made, seating)
            return self._table.reset(task, seed)

        return self._answer("reset", call, _check_first)

    def step(self, reply: Reply) -> Result:
        """Returns the environment's answer to a reply, or why there is none."""
        table = self._table
        assert table is not None, "an environment is reset before its first step"
        return self._answer("step", lambda: table.step(reply), check_answer)

    def close(self) -> Failure | None:
        """Closes the environment if it was made; returns the fault if that fails."""
        environment, self._environment = self._environment, None
        if environment is None:
            return None
        _, failure = self._called("close", environment.close)
        return failure

    def _answer(
        self, method: str, call: Callable[[], object], check: Callable[[Environment, Any], Result]
    ) -> Result:
        found, failure = self._called(method, call)
        if failure is not None:
            return failure
        assert self._environment is not None, "a method of it has returned"
        try:
            return plain(check(self._environment, found), f"{self._construction.name}.{method}")
        except ValueError as error:
            return Failure(str(error), "nonsense")

    def _called(self, method: str, call: Callable[[], object]) -> tuple[Any, Failure | None]:
        """Calls a method, and runs its coroutine if it returns one."""
        try:
            found = call()
            return (
                self._runner.run(_awaited(found)) if inspect.isawaitable(found) else found
            ), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # An environment may exit, or cancel itself.
            kind: Kind = "memory" if isinstance(error, MemoryError) else "raised"
            return None, Failure(f"{self._construction.name}.{method}: {_described(error)}", kind)


def _check_first(environment: Environment, found: object) -> Turn | Outcome:
    """Checks a first turn, or an outcome if opponents ended the game before the policy's turn."""
    if isinstance(found, SeatedOutcome):
        return check_answer(environment, found)
    return check_turn(environment, found)


async def _awaited(found: Any) -> Any:
    return await found


def _described(error: BaseException) -> str:
    """Returns the last lines of an exception's traceback, without the frames of this module."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename == __file__:
        first = first.tb_next
    lines = "".join(traceback.format_exception(type(error), error, first)).splitlines()
    return "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:]
