"""Host: runs the environments of many episodes, and answers when they do."""

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
      why: the fault in words; of an exception, the last lines of its traceback.
      kind: `raised` an exception; `time-out`: an answer, or a free worker, took too long;
        `memory`: more than the limit was asked for; `died`: the worker process ended; `nonsense`:
        something else than a record of plain data was returned.
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
        """Makes an environment and asks it for its first turn.

        Args:
          seating: the players, if it is a game of several.

        Raises:
          ValueError: the episode is under way already, or the task cannot be sent.
        """

    def step(self, episode: int, reply: Reply) -> None:
        """Gives the policy's reply to a turn that was answered.

        Raises:
          ValueError: the episode is not under way, or has yet to answer.
        """

    def answers(self, timeout_secs: float) -> list[HostAnswer]:
        """Returns answers that are ready, each once.

        Args:
          timeout_secs: the longest wait for the first.
        """

    def end(self, episode: int) -> None:
        """Gives an episode up: closes its environment and forgets it.

        Never raises; an episode that is not under way is left alone.
        """

    def close(self) -> None:
        """Ends all episodes, and the processes if there are any."""

    def __enter__(self) -> Host:
        """Returns the host."""

    def __exit__(self, *_: object) -> None:
        """Closes the host."""
