"""Meshes of the four CPU devices that tests have, with the rules of the base config."""

import jax

from rl_sync.configs import base
from rl_sync.models.sharding import Layout, MeshShape
from rl_sync.settings.mesh_settings import ShardingSettings

RULES = ShardingSettings(**base.get_config().sharding).rules


def layout(
    data: int = 1, fsdp: int = 1, tensor: int = 1, experts: int = 1, context: int = 1
) -> Layout:
    return Layout(MeshShape(data, fsdp, tensor, experts, context).mesh(jax.devices()), RULES)
