"""Links: their refusals. `test_collective.py` tests their transfers between processes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.models.sharding import MeshShape
from rl_sync.weights.link import Link


def like(devices: slice, shape=(4, 6), dtype=jnp.float32, name="w") -> dict:
    mesh = MeshShape(fsdp=len(jax.devices()[devices])).mesh(jax.devices()[devices])
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)}


def test_the_two_sides_have_no_device_in_common():
    with pytest.raises(ValueError, match="without a common device"):
        Link(like(slice(0, 2)), like(slice(1, 3)))


def test_parameters_of_another_model_are_refused_by_name():
    source = like(slice(0, 2))
    with pytest.raises(ValueError, match=r"\['w'\] is float32\[8, 6\].*float32\[4, 6\]"):
        Link(source, like(slice(2, 4), (8, 6)))
    with pytest.raises(ValueError, match=r"\['w'\] is bfloat16\[4, 6\].*float32\[4, 6\]"):
        Link(source, like(slice(2, 4), dtype=jnp.bfloat16))
    with pytest.raises(ValueError, match="structure"):
        Link(source, like(slice(2, 4), name="v"))
    with pytest.raises(ValueError, match=r"\['w'\] is float32\[8\]"):
        Link(source, like(slice(2, 4))).send({"w": jnp.zeros(8)})


def test_a_dtype_without_plain_bits_is_refused_when_planned():
    with pytest.raises(TypeError, match=r"\['w'\] has dtype"):
        Link(like(slice(0, 2), dtype=jnp.complex64), like(slice(2, 4), dtype=jnp.complex64))
