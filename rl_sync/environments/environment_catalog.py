"""The environments of the package by name."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.expression import parse_call
from rl_sync.references import is_reference


class EnvironmentKind(NamedTuple):
    """A named environment.

    Attributes:
      where: a reference to its class, which is imported when the environment is used.
      meaning: one sentence.
      branches: whether an episode may be several conversations, each a segment of its trajectory.
      rewards: whether it gives rewards; if not, the task's reward judges the last reply.
      of_library: whether it has the name of a library, whose own classes are no environments here.
    """

    where: str
    meaning: str
    branches: bool = False
    rewards: bool = True
    of_library: bool = False


BY_SET = "by_set"

ENVIRONMENTS = {
    "agent": EnvironmentKind(
        "rl_sync.addons.agents.agent:Agent",
        "Runs an agent: any program that asks an endpoint (OpenAI, Anthropic) for replies.",
        branches=True,
    ),
    "calculator": EnvironmentKind(
        "rl_sync.addons.games.calculator:Calculator",
        "Works out what the policy writes between two signs, and judges its final answer.",
    ),
    "frozen_lake": EnvironmentKind(
        "rl_sync.addons.games.frozen_lake:FrozenLake",
        "Shows a frozen lake with holes as an image after each move; the policy must see.",
    ),
    "guess": EnvironmentKind(
        "rl_sync.addons.games.guess:Guess",
        "Hides a number, and says of each guess whether it is too small or too large.",
    ),
    "nim": EnvironmentKind(
        "rl_sync.addons.games.nim:Nim",
        "Plays Nim, a game of two players, in few characters.",
    ),
    "python": EnvironmentKind(
        "rl_sync.environments.python:Python",
        "Runs the policy's Python code in a sandbox; the task's reward judges its last reply.",
        rewards=False,
    ),
    BY_SET: EnvironmentKind(
        "rl_sync.environments.environments_by_set:EnvironmentBySet",
        "Plays each set of a mixture of tasks in an environment of its own, or in none.",
        rewards=False,
    ),
    "textarena": EnvironmentKind(
        "rl_sync.addons.games.textarena_games:TextArenaGame",
        "Plays a game of TextArena, for one player or several.",
        of_library=True,
    ),
    "gymnasium": EnvironmentKind(
        "rl_sync.addons.games.gymnasium_games:GymnasiumGame",
        "Puts an environment of Gymnasium into words.",
        of_library=True,
    ),
    "openenv": EnvironmentKind(
        "rl_sync.addons.games.openenv_client:OpenEnvClient",
        "Opens a session at an OpenEnv server.",
        of_library=True,
    ),
    "verifiers": EnvironmentKind(
        "rl_sync.addons.agents.verifiers_environment:VerifiersEnvironment",
        "Plays a taskset of verifiers, with its harness and its rewards.",
        branches=True,
        of_library=True,
    ),
}

AGENT_HOST = "rl_sync.addons.agents.agent_host:AgentHost"
"""Reference to the host of environments that ask an endpoint for replies."""


def is_own(name: str) -> bool:
    """Says whether a name is a reference to a class of the user's."""
    return is_reference(name.partition("(")[0].strip())


def branches(name: str) -> bool:
    """Says whether episodes of an environment may be several conversations."""
    kind = ENVIRONMENTS.get(name.partition("(")[0].strip())
    return kind is not None and kind.branches


def gives_rewards(name: str) -> bool:
    """Says whether an environment gives rewards; all environments of users count as giving them."""
    kind = ENVIRONMENTS.get(name.partition("(")[0].strip())
    return kind is None or kind.rewards


def reference_of(name: str) -> str:
    """Returns the reference that a name stands for, with its options.

    Raises:
      ValueError: the name or its options cannot be read.
    """
    parse_call(name, "environment.name")
    bare, bracket, options = name.partition("(")
    if is_own(name):
        return name
    return f"{ENVIRONMENTS[bare.strip()].where}{bracket}{options}"


def environments_of_sets(name: str | None) -> dict[str, str]:
    """Returns the environment of each set of a mixture; empty if the environment is not `by_set`.

    Raises:
      ValueError: the options of `by_set` cannot be read.
    """
    if name is None or name.partition("(")[0].strip() != BY_SET:
        return {}
    return {
        of: str(environment)
        for of, environment in parse_call(name, "environment.name").options.items()
    }
