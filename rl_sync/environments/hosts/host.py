"""Interface of hosts, which run the environments of many episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.environments.opponents import Seating
from rl_sync.isolation.codec import record

Kind = Literal["raised", "time-out", "memory", "died", "nonsense"]


@record
@dataclasses.dataclass(frozen=True)
class Failure:
    """The end of an episode whose environment failed; other episodes go on.

    Attributes:
      why: description of the fault; for an exception, the last lines of its traceback.
      kind: `raised` an exception; `time-out`: an answer, or a free worker, took too long;
        `memory`: it exceeded the memory limit; `died`: the worker process ended; `nonsense`: it
        returned something other than a record of plain data.
    """

    why: str
    kind: Kind


Result = Turn | Outcome | Failure


class HostAnswer(NamedTuple):
    """An environment's answer to `begin` or `step`."""

    episode: int
    result: Result


class Host(Protocol):
    """Runs the environments of many episodes; one thread at a time may call it.

    `begin` and each `step` get one answer. An `Outcome` or a `Failure` is an episode's last: the
    host then closes its environment and forgets it.
    """

    @property
    def queued(self) -> int:
        """Number of episodes that cannot begin before others end."""

    def begin(
        self, episode: int, task: Mapping[str, Any], seed: int, seating: Seating | None = None
    ) -> None:
        """Makes an environment, and requests its first turn.

        Args:
          seating: the players, if it is a game of several.

        Raises:
          ValueError: the episode is already in progress, or the task cannot be sent.
        """

    def step(self, episode: int, reply: Reply) -> None:
        """Sends the policy's reply to the last turn.

        Raises:
          ValueError: the episode is not in progress, or has yet to answer.
        """

    def answers(self, timeout_secs: float) -> list[HostAnswer]:
        """Returns answers that are ready, each once.

        Args:
          timeout_secs: maximum wait for the first.
        """

    def end(self, episode: int) -> None:
        """Abandons an episode: closes its environment and forgets it.

        Never raises; ignores an episode that is not in progress.
        """

    def close(self) -> None:
        """Ends all episodes, and the processes if there are any."""

    def __enter__(self) -> Host:
        """Returns the host."""

    def __exit__(self, *_: object) -> None:
        """Closes the host."""
