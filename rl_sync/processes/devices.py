"""Which GPUs of a machine each role's processes get."""

from __future__ import annotations

from rl_sync.processes.topology import device_share, members_of
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run import RunSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


def role_environment(settings: RunSettings, visible: str | None) -> dict[str, dict[str, str]]:
    """What the environment of each process on this machine has besides the launcher's own, by its
    name; on other machines they have all GPUs that there are.

    Args:
      visible: the launcher's `CUDA_VISIBLE_DEVICES`. Several GPUs are shared out, to each process
        as many as its part of the mesh has; one GPU is shared by all, and without the variable JAX
        finds what there is.

    Raises:
      ConfigError: there are several GPUs, but too few.
    """
    if settings.launch.colocate:
        return {}  # One process has them all, and shares them out itself.
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
