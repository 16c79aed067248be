"""Choice of the host for an environment."""

from __future__ import annotations

from collections.abc import Callable

from rl_sync.environments.environment_catalog import AGENT_HOST
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import Access, HostLimits
from rl_sync.environments.hosts.host import Host
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Turn
from rl_sync.references import resolve
from rl_sync.thoughts import KNOWN, ThoughtMarks


def host_of(
    reference: str,
    limits: HostLimits | None = None,
    access: Access | None = None,
    thoughts: tuple[ThoughtMarks, ...] = KNOWN,
    count: Callable[[Turn], int] | None = None,
) -> Host:
    """Makes the host of an environment, of the kind that its class asks for.

    A class that says `inline = True` runs in this process, any other one in worker processes. If it
    says `asks_endpoint = True`, its host has an endpoint.

    The environment's module is imported in this process, too, to see what its class says.

    Args:
      reference: such as `module:Class(level=3)` or `path/to/file.py:Class`.
      limits: limits of worker processes.
      access: the ways into the endpoint.
      thoughts: marks around the thoughts of replies.
      count: counts the tokens of a conversation for agents that ask.

    Raises:
      ValueError: the environment cannot be imported, or has no such option.
    """
    construction = Construction.of(reference)
    if construction.inline:
        return InlineHost(reference)
    if construction.asks_endpoint:
        agents: Host = resolve(AGENT_HOST)(reference, limits, access, thoughts, count)
        return agents
    return ProcessHost(reference, limits)
