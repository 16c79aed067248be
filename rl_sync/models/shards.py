"""Runs functions on each device's own shards."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.experimental.layout import Layout as DeviceLayout
from jax.experimental.layout import with_layout_constraint
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from rl_sync.models.platform import TPU_LANES, platform
from rl_sync.models.sharding import in_use, laid_out

T = TypeVar("T")
Cut = Sequence[str | None] | PartitionSpec
"""Logical names of an array's first axes, or its sharding."""
_TILE_ROWS = 8


def as_stored(x: Array, *axes: str | None) -> Array:
    """Makes a TPU's compiler read an argument in its stored order, the last axis innermost.

    On other platforms it returns x itself.

    Args:
      axes: see `constrain`.
    """
    if platform() != "tpu":
        return x

    return _in_stored_order(x, in_use().sharding(axes, x.shape))


def all_as_stored(tree: T, abstract: T) -> T:
    """Does the same for every array of a tree, given its shapes and shardings."""
    if platform() != "tpu":
        return tree
    return jax.tree.map(lambda x, like: _in_stored_order(x, like.sharding), tree, abstract)


def _stored_order(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the order of axes, outermost first, in which a TPU stores an argument; None for one
    that is not known.

    The last axis is innermost, unless another one leaves fewer of the lanes and rows of a tile
    empty.
    """
    usual = tuple(range(len(shape)))
    if not shape or not shape[-1] % TPU_LANES:
        return usual if shape else None
    if len(shape) != 2:
        return None

    def stored(rows: int, lanes: int) -> int:
        return math.ceil(rows / _TILE_ROWS) * _TILE_ROWS * math.ceil(lanes / TPU_LANES) * TPU_LANES

    return (1, 0) if stored(shape[1], shape[0]) < stored(*shape) else usual


def _in_stored_order(x: Array, sharding: NamedSharding) -> Array:
    def pinned(x: Array) -> Array:
        order = _stored_order(x.shape)
        return x if order is None else with_layout_constraint(x, DeviceLayout(order))

    if not laid_out():
        return pinned(x)
    # The compiler cannot partition the constraint, so each device sets it on its own shard.
    cut = sharding.spec
    return jax.shard_map(pinned, mesh=sharding.mesh, in_specs=cut, out_specs=cut, check_vma=False)(
        x
    )


def on_shards(
    function: Callable[..., Any], *axes: Cut, like: tuple[int, ...] | None = None
) -> Callable[..., Any]:
    """Makes a function run on each device's shards of its arguments, without communication.

    If the current layout has one device, the function runs unchanged.

    Args:
      function: maps arrays to an array with the sharding of the first argument.
      axes: for each argument, the logical names of its first axes, or its sharding. An argument may
        be None.
      like: for a function that returns several arrays, the number of the argument whose sharding
        each has.
    """

    def cut(x: Array | None, of: Cut) -> PartitionSpec:
        if x is None or isinstance(of, PartitionSpec):
            return of if isinstance(of, PartitionSpec) else PartitionSpec()
        return in_use().sharding(of, x.shape).spec

    def run(*arrays: Array | None) -> Any:
        if not laid_out():
            return function(*arrays)
        layout, specs = in_use(), tuple(cut(*pair) for pair in zip(arrays, axes, strict=True))
        made = specs[0] if like is None else tuple(specs[number] for number in like)
        mapped = jax.shard_map(
            function, mesh=layout.mesh, in_specs=specs, out_specs=made, check_vma=False
        )
        return mapped(*arrays)

    return run


def by_rows(
    function: Callable[..., T], x: Array, axes: tuple[str | None, str | None], *others: Any
) -> T:
    """Computes a function of each row of a matrix whose columns the current layout may shard.

    Devices that hold parts of the same rows exchange them, so that each has an equal share of whole
    rows: this needs less communication and memory than gathering all rows. If the rows do not
    divide evenly, each device gets all of them.

    Args:
      function: maps rows of x and of `others` to arrays with the same first axis.
      axes: logical names of rows and columns.
      others: trees of arrays that are sharded only by rows.
    """
    if not laid_out():
        return function(x, *others)
    layout = in_use()
    rows, columns = (*layout.sharding(axes, x.shape).spec, None, None)[:2]
    cut = (columns,) if isinstance(columns, str) else tuple(columns or ())
    parts = math.prod(layout.mesh.shape[name] for name in cut)

    def share(x: Array, others: Any) -> Any:
        if not cut:
            return function(x, *others)
        if x.shape[0] % parts:
            return function(jax.lax.all_gather(x, cut, axis=1, tiled=True), *others)
        x = jax.lax.all_to_all(x, cut, split_axis=0, concat_axis=1, tiled=True)
        first = jax.lax.axis_index(cut) * x.shape[0]
        own = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=x.shape[0]
        )
        found = function(x, *jax.tree.map(own, others))
        return jax.tree.map(lambda x: jax.lax.all_gather(x, cut, tiled=True), found)

    by = PartitionSpec(rows)
    return jax.shard_map(
        share,
        mesh=layout.mesh,
        in_specs=(PartitionSpec(rows, columns), by),
        out_specs=by,
        check_vma=False,
    )(x, others)
