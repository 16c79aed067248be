"""Meshes of the four CPU devices that tests have, with the rules of the base config."""

import dataclasses

import jax

from rl_sync.configs import base
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.sharding import Layout
from rl_sync.settings.mesh_settings import ShardingSettings

SHARDING = ShardingSettings(**base.get_config().sharding)
RULES = SHARDING.rules


def layout(
    data: int = 1, fsdp: int = 1, tensor: int = 1, experts: int = 1, context: int = 1
) -> Layout:
    return Layout(MeshShape(data, fsdp, tensor, experts, context).mesh(jax.devices()), RULES)


def engine_layout(**mesh: int) -> Layout:
    """Lays out an engine: rows of slots are cut over `context`, too, and parameters are not."""
    return dataclasses.replace(layout(**mesh), rules=SHARDING.engine_rules)
