"""Places parameters on a mesh: no device ever holds a whole array that the layout shards."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rl_sync.models.config import ModelConfig
from rl_sync.models.quantization import held_dtypes
from rl_sync.models.sharding import GROUP, Layout
from rl_sync.models.transformer import init_params, param_axes, param_shapes
from rl_sync.types import Params

_USED_IN_FLOAT32 = ("scale", "bias")
"""Names of parameters that a forward pass does not cast."""


def abstract_params(config: ModelConfig, layout: Layout) -> Params:
    """Returns shapes, dtypes and shardings of the parameters."""
    return jax.tree.map(layout.abstract, param_shapes(config), param_axes(config))


def init_sharded(config: ModelConfig, key: Array, layout: Layout) -> Params:
    """Makes random float32 parameters; each device makes its own shards.

    The values are those of `init_params`, whatever the layout.
    """
    out = shardings(abstract_params(config, layout))
    return jax.jit(init_params, static_argnums=0, out_shardings=out)(config, key)


def abstract_of(params: Params) -> Params:
    """Returns the shapes, dtypes and shardings of arrays."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params
    )


def zeros(abstract: Params) -> Params:
    """Makes zeros in the shapes, dtypes and shardings of `abstract`."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), abstract)


def cast_abstract(abstract: Params, dtype: str) -> Params:
    """Returns the same shapes and shardings with another dtype; quantized kernels keep theirs."""
    return jax.tree.map(
        lambda x, own: jax.ShapeDtypeStruct(x.shape, own, sharding=x.sharding),
        abstract,
        held_dtypes(abstract, dtype),
    )


def as_computed(config: ModelConfig, params: Params) -> Params:
    """Casts parameters that are only read to the dtype of the computation; may be traced.

    A forward pass casts them itself, so its results have the same bits. It uses the scales of norms
    and the bias of a scalar head in float32, so these stay.
    """
    return jax.tree.map_with_path(
        lambda path, x: x.astype(config.dtype) if _is_cast(path) else jnp.asarray(x), params
    )


def as_computed_abstract(config: ModelConfig, abstract: Params) -> Params:
    """Returns the shapes, dtypes and shardings of `as_computed`."""
    return jax.tree.map_with_path(
        lambda path, x: jax.ShapeDtypeStruct(
            x.shape, config.dtype if _is_cast(path) else x.dtype, sharding=x.sharding
        ),
        abstract,
    )


def _is_cast(path: jax.tree_util.KeyPath) -> bool:
    return jax.tree_util.keystr(path[-1:], simple=True) not in _USED_IN_FLOAT32


def shardings(abstract: Params) -> Params:
    """Returns the sharding of every leaf."""
    return jax.tree.map(lambda x: x.sharding, abstract)


def in_host_memory(abstract: Params) -> Params:
    """Returns the same shapes, dtypes and shardings, but in host memory.

    Scalars stay on the devices.
    """

    def there(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = x.sharding.with_memory_kind("pinned_host") if x.ndim else x.sharding
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(there, abstract)


def move(tree: Params, abstract: Params) -> Params:
    """Copies every leaf to the sharding and memory of its leaf in `abstract`; may be traced."""
    return jax.device_put(tree, shardings(abstract), may_alias=False)


def constrain_like(tree: Params, abstract: Params) -> Params:
    """Makes the compiler shard every leaf, and its gradient, like the leaf in `abstract`."""
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings(abstract))


def put(value: Any, sharding: jax.sharding.Sharding | None) -> Array:
    """Places a value that every process has: each process places the shards of its own devices.

    An array that already has this sharding is returned unchanged.
    """
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def addressable(array: Array) -> np.ndarray:
    """Reads into host memory the parts of a numeric array that this process's devices hold.

    Elements that only other processes hold are NaN.
    """
    if array.is_fully_addressable:
        return np.asarray(array)
    found = np.full(array.shape, np.nan, array.dtype)
    for shard in array.addressable_shards:
        found[shard.index] = np.asarray(shard.data)
    return found


def undivided(config: ModelConfig, layout: Layout) -> list[str]:
    """Lists the axes of parameters that the layout names for sharding but cannot divide evenly.

    Returns:
      Lines such as `embedding: vocab of 15 over tensor=2`.
    """
    lines = []
    named = jax.tree_util.tree_leaves_with_path(param_axes(config))
    for (path, names), leaf in zip(named, jax.tree.leaves(param_shapes(config)), strict=True):
        of_leaf = layout.for_array(names, leaf.shape)
        sizes = of_leaf.mesh.shape
        for name, size, cut in zip(names, leaf.shape, of_leaf.wanted(names), strict=False):
            parts = math.prod(sizes[axis] for axis in cut)
            if size % parts:
                over = ", ".join(f"{axis}={sizes[axis]}" for axis in cut)
                if cut == (GROUP,):
                    over = f"the {parts} devices that share a kv head"
                where = jax.tree_util.keystr(path, simple=True, separator="/")
                lines.append(f"{where}: {name} of {size} over {over}")
    return lines
