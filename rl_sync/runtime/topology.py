"""Which process a role is in the cluster, and on which devices.

With collective transfer all roles form one cluster, the trainer first; else each is alone.
"""

from __future__ import annotations

import jax

from rl_sync.models.sharding import Layout
from rl_sync.runtime.records import ConfigError
from rl_sync.runtime.settings import RunSettings

TRAINER = "trainer"


def explorer_name(number: int) -> str:
    """The role of an explorer, by its number from 1."""
    return f"explorer{number}"


def process_of(settings: RunSettings, role: str) -> int:
    """The index of a role's process in its cluster."""
    if settings.transfer != "collective" or role == TRAINER:
        return 0
    return int(role.removeprefix("explorer"))


def layout_of(settings: RunSettings, role: str) -> Layout:
    """The mesh of a role of this process's cluster, on the first of its process's devices.

    Raises:
      ConfigError: the process has fewer devices than that.
    """
    index = process_of(settings, role)
    devices = [device for device in jax.devices() if device.process_index == index]
    try:
        return Layout(settings.mesh_of(role).mesh(devices), settings.sharding.rules)
    except ValueError as error:
        raise ConfigError(f"{role.rstrip('0123456789')}.mesh: {error}") from error
