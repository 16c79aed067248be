"""Updates by an optimizer whose state is sharded like the parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from rl_sync.models.placement import constrain_like, in_host_memory, move, shardings
from rl_sync.models.sharding import Layout
from rl_sync.types import Params


@dataclasses.dataclass(frozen=True)
class ShardedOptimizer:
    """An optimizer, and the shardings of its parameters and of its state.

    Attributes:
      transformation: the optimizer.
      abstract: shapes, dtypes and shardings of the parameters.
      layout: sharding of the parameters.
      offloaded: whether the optimizer's state is in host memory between updates.
    """

    transformation: optax.GradientTransformation
    abstract: Params
    layout: Layout
    offloaded: bool = False

    def init(self, params: Params) -> optax.OptState:
        """Makes the initial optimizer state; each device makes its own shards."""
        out = shardings(self._on_devices)
        state = jax.jit(self.transformation.init, out_shardings=out)(params)
        return move(state, self.abstract_state()) if self.offloaded else state

    def abstract_state(self) -> optax.OptState:
        """Returns shapes, dtypes and shardings of the optimizer's state."""
        return in_host_memory(self._on_devices) if self.offloaded else self._on_devices

    @functools.cached_property
    def _on_devices(self) -> optax.OptState:
        return abstract_opt_state(self.transformation, self.abstract, self.layout)

    def update(
        self,
        params: Params,
        opt_state: optax.OptState,
        gradient: Params,
        learns: Bool[Array, ""],
    ) -> tuple[Params, optax.OptState]:
        """Updates the parameters and the optimizer's state; each device updates its own shards.

        Args:
          learns: whether anything changes. It must not depend on the update, or the old and the
            new state would be in memory at the same time.
        """
        if self.offloaded:
            opt_state = move(opt_state, self._on_devices)
        updates, after = self.transformation.update(gradient, opt_state, params)
        updated = optax.apply_updates(params, updates), after
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(learns, new, old), updated, (params, opt_state)
        )
        params = constrain_like(params, self.abstract)
        opt_state = constrain_like(opt_state, self._on_devices)
        if self.offloaded:
            opt_state = move(opt_state, self.abstract_state())
        return params, opt_state


def updates_taken(opt_state: optax.OptState) -> Int[Array, ""]:
    """Returns the number of updates that an optimizer's state counts; skipped ones do not count."""

    def is_schedule(part: object) -> bool:
        return isinstance(part, optax.ScaleByScheduleState)

    parts = jax.tree.leaves(opt_state, is_leaf=is_schedule)
    (count,) = [part.count for part in parts if is_schedule(part)]
    return count


def all_finite(tree: Mapping[str, Array] | Sequence[Array]) -> Bool[Array, ""]:
    """Says whether a pytree of arrays has neither NaN nor infinities."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves], bool))


def abstract_opt_state(
    transformation: optax.GradientTransformation, params: Params, layout: Layout
) -> optax.OptState:
    """Returns shapes, dtypes and shardings of an optimizer's state.

    State whose shape differs from its parameter's, such as Adafactor's factors, is replicated.

    Args:
      params: the trained parameters; arrays or `jax.ShapeDtypeStruct`s, with shardings.
    """

    def placed(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return optax.tree_map_params(
        transformation,
        lambda leaf, param: placed(
            leaf, param.sharding if leaf.shape == param.shape else layout.repeated
        ),
        jax.eval_shape(transformation.init, params),
        params,
        transform_non_params=lambda leaf: placed(leaf, layout.repeated),
    )
