"""Which GPUs of a machine each role gets."""

from __future__ import annotations

from rl_sync.runtime.records import ConfigError
from rl_sync.runtime.settings import RunSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


def role_environment(settings: RunSettings, visible: str | None) -> dict[str, dict[str, str]]:
    """What each role's environment has besides the launcher's own.

    Args:
      visible: the launcher's `CUDA_VISIBLE_DEVICES`. Several GPUs are shared out, to each role as
        many as its mesh has; one GPU is shared by all roles, and without the variable JAX finds
        what there is.

    Raises:
      ConfigError: there are several GPUs, but too few.
    """
    if settings.launch.colocate:
        return {}  # One process has them all, and shares them out itself.
    ids = [name.strip() for name in (visible or "").split(",") if name.strip()]
    roles = {role: settings.mesh_of(role).devices for role in ["trainer", *settings.roles[:-1]]}
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
