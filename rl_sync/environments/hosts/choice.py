"""Choice of the host for an environment."""

from __future__ import annotations

from rl_sync.environments.endpoint.server import Access
from rl_sync.environments.hosts.agents import AgentHost
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.host import Host
from rl_sync.environments.hosts.inline import InlineHost
from rl_sync.environments.hosts.limits import Limits
from rl_sync.environments.hosts.processes import ProcessHost


def host_of(reference: str, limits: Limits | None = None, access: Access | None = None) -> Host:
    """Makes the host of an environment: inline if its class says so, else with worker processes.

    One whose class says that it asks an endpoint has one.

    The environment's module is imported in this process, too, to see what its class says.

    Args:
      reference: such as `module:Class(level=3)` or `path/to/file.py:Class`.
      limits: limits of worker processes.
      access: the ways into the endpoint.

    Raises:
      ValueError: the environment cannot be imported, or has no such option.
    """
    construction = Construction.of(reference)
    if construction.inline:
        return InlineHost(reference)
    if construction.asks_endpoint:
        return AgentHost(reference, limits, access)
    return ProcessHost(reference, limits)
