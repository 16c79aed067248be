"""An environment for each set of a mixture of tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Any

from rl_sync.environments.first_messages import first_messages
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.interface import Environment, Outcome, Reply, Turn, players_of
from rl_sync.spelling import require_one_of
from rl_sync.tasks.tokenizers.prompt_messages import messages_of

_SET = "task_set"  # As in rl_sync.rewards.rewards_by_set.
_JUDGED = "its reply is judged by the reward of its set"


class EnvironmentBySet:
    """Plays each row in the environment of its `task_set`: `by_set(game='guess', …)`.

    A row of any other set is asked once, as without an environment: its reward judges the reply.

    Args:
      environments: the environment of each set that has one: a name with options, or a reference.

    Raises:
      ValueError: no environment is given, or one cannot be made here.
    """

    def __init__(self, **environments: str) -> None:
        self._makers = constructions(environments)
        self._env: Environment | None = None

    @classmethod
    def check(cls, **environments: str) -> None:
        """Checks the environments of the sets.

        Raises:
          ValueError: one cannot be made, or cannot run on this machine.
        """
        for part in cls.parts_of(**environments):
            part.check()

    @classmethod
    def parts_of(cls, **environments: str) -> Collection[Construction]:
        """Returns the constructors of the sets' environments."""
        return constructions(environments).values()

    @property
    def players(self) -> int:
        """The number of players of the episode's game."""
        return 1 if self._env is None else players_of(self._env)

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn | Awaitable[Turn]:
        """Begins an episode of the row's set."""
        maker = self._makers.get(str(task.get(_SET)))
        self._env = None if maker is None else maker.make()
        if self._env is None:
            asked = messages_of(task)
            tools = () if asked is None else tuple(asked.tools)
            return Turn(first_messages(task), tools=tools)
        return self._env.reset(task, seed)

    def step(self, reply: Reply) -> Turn | Outcome | Awaitable[Turn | Outcome]:
        """Takes the policy's reply."""
        if self._env is None:
            return Outcome({}, why=_JUDGED)
        return self._env.step(reply)

    def close(self) -> Awaitable[None] | None:
        """Closes the environment of the last episode."""
        env, self._env = self._env, None
        return None if env is None else env.close()


def constructions(environments: Mapping[str, str]) -> dict[str, Construction]:
    """Makes the constructors of some sets' environments.

    Raises:
      ValueError: no environment is given, or one cannot be part of a mixture.
    """
    from rl_sync.environments.environment_catalog import (
        ENVIRONMENTS,
        branches,
        is_own,
        reference_of,
    )

    if not environments:
        raise ValueError("by_set needs an environment for a set, as in by_set(game='guess').")
    for name, one in environments.items():
        if not is_own(one):
            require_one_of(f"by_set: {name}", one.partition("(")[0].strip(), ENVIRONMENTS)
        if branches(one):
            raise ValueError(f"by_set cannot run the agent of the set {name}: agents go alone.")
    return {name: Construction.of(reference_of(one)) for name, one in environments.items()}
