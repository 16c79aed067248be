"""Movers: programs that move every device's load of one format along the routes of a wave.

The routes are compiled into a program, and the wave is an argument. So one program serves all waves
of a format. A mover that donates its loads exchanges them in place, a few parts at a time: what
arrives takes the memory of what leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Shaped

AXIS = "device"
"""The axis of the mesh of all devices."""

Steps = Sequence[tuple[int, int]]
"""Routes of a wave: for each the places of its sender and its receiver in the mesh."""

_Arrays = list[Shaped[Array, "*shape"]]

_LEAST_PARTS, _MOST_PARTS = 4, 8


def mover(mesh: Mesh, waves: Sequence[Steps], *, donate: bool) -> Any:
    """Makes the program that moves loads along the routes of one of some waves.

    Args:
      mesh: a mesh of all devices, with the one axis `AXIS`.
      waves: the routes of each wave.
      donate: whether the loads are donated.

    Returns:
      A compiled function of the loads, sharded over all devices, and of the wave's number.
    """
    exchanges = [_along(steps) for steps in waves]

    def exchange(arrays: _Arrays, wave: Int[Array, ""]) -> _Arrays:
        return lax.switch(wave, exchanges, arrays) if len(exchanges) > 1 else exchanges[0](arrays)

    def move(load: _Arrays, wave: Int[Array, ""]) -> _Arrays:
        if not donate:
            return exchange(load, wave)
        return [_in_place(x, lambda part: exchange([part], wave)[0]) for x in load]

    spec = PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            move, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False
        ),
        donate_argnums=0 if donate else (),
    )


def _along(steps: Steps) -> Callable[[_Arrays], _Arrays]:
    return lambda arrays: [lax.ppermute(x, AXIS, steps) for x in arrays]


def _in_place(
    x: Shaped[Array, "*shape"],
    exchange: Callable[[Shaped[Array, "*part"]], Shaped[Array, "*part"]],
) -> Shaped[Array, "*shape"]:
    """Exchanges an array part by part, so that no second one is needed."""
    axis, parts = _parts(x.shape)
    if parts == 1:
        return exchange(x)
    size = x.shape[axis] // parts

    def step(number: Int[Array, ""], x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        part = lax.dynamic_slice_in_dim(x, number * size, size, axis)
        return lax.dynamic_update_slice_in_dim(x, exchange(part), number * size, axis)

    return lax.fori_loop(0, parts, step, x)


def _parts(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the first axis that can be cut into enough equal parts, and their number."""
    numbers = [
        max(number for number in range(1, _MOST_PARTS + 1) if length % number == 0)
        for length in shape
    ]
    enough = min(max(numbers, default=1), _LEAST_PARTS)
    return next(((a, n) for a, n in enumerate(numbers) if n >= enough), (0, 1))
