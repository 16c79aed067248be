"""Host in the caller's process, for environments that are pure and fast."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.guarded import Guarded
from rl_sync.environments.hosts.host import HostAnswer, Result
from rl_sync.environments.interface import Reply, Turn
from rl_sync.environments.opponents import Seating

_log = logging.getLogger(__name__)


class InlineHost:
    """Runs environments in the caller's thread, at once: an answer is ready when a call returns.

    There is no limit of time or memory. `async` methods run to their end, so the caller's thread
    must have no running event loop.

    Args:
      reference: such as `module:Class(level=3)`; the class says `inline = True`.

    Raises:
      ValueError: the class cannot be imported, or does not allow running inline.
    """

    def __init__(self, reference: str) -> None:
        self._construction = Construction.of(reference)
        if not self._construction.inline:
            raise ValueError(
                f"The environment {self._construction.name} does not say that it may run in the"
                " explorer's process. If it is pure Python that cannot hang, give its class the"
                " attribute inline = True; else host it in worker processes."
            )
        self._runner = asyncio.Runner()
        self._under_way: dict[int, Guarded] = {}
        self._ready: list[HostAnswer] = []

    @property
    def queued(self) -> int:
        """Always 0: all episodes begin at once."""
        return 0

    def begin(
        self, episode: int, task: Mapping[str, Any], seed: int, seating: Seating | None = None
    ) -> None:
        """Makes an environment and its first turn.

        Raises:
          ValueError: the episode is already in progress.
        """
        if episode in self._under_way:
            raise ValueError(
                f"Episode {episode} is under way already: end it before it begins anew."
            )
        guarded = self._under_way[episode] = Guarded(self._construction, self._runner)
        self._answered(episode, guarded.reset(task, seed, seating))

    def step(self, episode: int, reply: Reply) -> None:
        """Lets an environment answer a reply.

        Raises:
          ValueError: the episode is not in progress.
        """
        if episode not in self._under_way:
            raise ValueError(f"Episode {episode} is not under way: it ended, or never began.")
        if any(answer.episode == episode for answer in self._ready):
            raise ValueError(
                f"Episode {episode} has answered: fetch its answer before its next step."
            )
        self._answered(episode, self._under_way[episode].step(reply))

    def answers(self, timeout_secs: float) -> list[HostAnswer]:
        """Returns all answers since the last call; it never waits."""
        ready, self._ready = self._ready, []
        return ready

    def end(self, episode: int) -> None:
        """Closes an episode's environment and forgets its answers."""
        self._ready = [answer for answer in self._ready if answer.episode != episode]
        self._forget(episode)

    def close(self) -> None:
        """Ends all episodes."""
        for episode in list(self._under_way):
            self.end(episode)
        self._runner.close()

    def __enter__(self) -> InlineHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answered(self, episode: int, result: Result) -> None:
        self._ready.append(HostAnswer(episode, result))
        if not isinstance(result, Turn):
            self._forget(episode)

    def _forget(self, episode: int) -> None:
        guarded = self._under_way.pop(episode, None)
        failure = guarded.close() if guarded is not None else None
        if failure is not None:
            _log.warning(
                "Episode %d: its environment could not be closed: %s", episode, failure.why
            )
