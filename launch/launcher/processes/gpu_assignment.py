"""Assignment of a machine's GPUs to the processes of the roles."""

from __future__ import annotations

from rl_sync.cluster.topology import device_share, members_of
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


def role_environment(settings: RunSettings, visible: str | None) -> dict[str, dict[str, str]]:
    """Returns additional environment variables of each process on this machine, by its name.

    Processes on other machines see all GPUs.

    Args:
      visible: the launcher's `CUDA_VISIBLE_DEVICES`. Each process gets as many GPUs as its part of
        the mesh has. A single GPU is shared by all. Without the variable, JAX finds the GPUs
        itself.

    Raises:
      ConfigError: there are several GPUs, but too few.
    """
    if settings.launch.colocate:
        return {}  # One process has all GPUs, and distributes them itself.
    ids = [name.strip() for name in (visible or "").split(",") if name.strip()]
    roles = {
        member.name: device_share(settings, member.program)
        for member in members_of(settings)
        if member.name not in settings.launch.elsewhere
    }
    needed = sum(roles.values())
    if len(ids) < 2 and needed == len(roles):
        return {role: {} for role in roles}
    if ids and len(ids) < needed:
        wanted = ", ".join(f"{role} {count}" for role, count in roles.items())
        raise ConfigError(
            f"The roles of this run need {needed} GPUs ({wanted}), but {VISIBLE}={visible} names"
            f" {len(ids)}: name more, or lower trainer.mesh, explorer.mesh or explorer.count."
        )
    given: dict[str, dict[str, str]] = {}
    for role, count in roles.items():
        given[role] = {VISIBLE: ",".join(ids[:count])} if ids else {}
        ids = ids[count:]
    return given
