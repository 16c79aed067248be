"""Updates by an optimizer, and its state, each part of which lies where its parameter lies."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from rl_sync.models.placement import constrain_like, in_host_memory, move, shardings
from rl_sync.models.sharding import Layout
from rl_sync.types import Params


@dataclasses.dataclass(frozen=True)
class Descent:
    """An optimizer, and where what it updates and its own state lie.

    Attributes:
      transformation: the optimizer.
      like: shapes, dtypes and shardings of the parameters.
      layout: where they lie.
      offloaded: whether the optimizer's state waits for the next update in the host's memory.
    """

    transformation: optax.GradientTransformation
    like: Params
    layout: Layout
    offloaded: bool = False

    def init(self, params: Params) -> Any:
        """The optimizer's state at the start; on a mesh each device makes its own shards."""
        places = shardings(self._on_devices)
        state = jax.jit(self.transformation.init, out_shardings=places)(params)
        return move(state, self.state_like()) if self.offloaded else state

    def state_like(self) -> Any:
        """Shapes, dtypes and shardings of the optimizer's state."""
        return in_host_memory(self._on_devices) if self.offloaded else self._on_devices

    @property
    def _on_devices(self) -> Any:
        return opt_state_like(self.transformation, self.like, self.layout)

    def update(
        self,
        params: Params,
        opt_state: Any,
        gradient: Params,
        learns: Bool[Array, ""],
    ) -> tuple[Params, Any]:
        """One update of parameters and of the optimizer's state; each device updates its shards.

        Args:
          learns: whether anything changes. It must not depend on the update, or the old and the new
            state are in memory at once.
        """
        if self.offloaded:
            opt_state = move(opt_state, self._on_devices)
        updates, after = self.transformation.update(gradient, opt_state, params)
        updated = optax.apply_updates(params, updates), after
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(learns, new, old), updated, (params, opt_state)
        )
        params = constrain_like(params, self.like)
        opt_state = constrain_like(opt_state, self._on_devices)
        if self.offloaded:
            opt_state = move(opt_state, self.state_like())
        return params, opt_state


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether no number of a pytree of arrays is NaN or infinite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves], bool))


def opt_state_like(
    transformation: optax.GradientTransformation, params: Params, layout: Layout
) -> Any:
    """Shapes, dtypes and shardings of the state.

    What has another shape than its parameter, such as Adafactor's factors, is on every device.

    Args:
      params: what is trained; arrays or `jax.ShapeDtypeStruct`s, with shardings.
    """

    def placed(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
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
