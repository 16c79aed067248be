"""The optimizer's state on a mesh: what belongs to a parameter lies where the parameter lies."""

from __future__ import annotations

from typing import Any

import jax
import optax

from rl_sync.models.placement import constrain_like, shardings
from rl_sync.models.sharding import Layout
from rl_sync.types import Params


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


def init_opt_state(
    transformation: optax.GradientTransformation, params: Params, layout: Layout | None
) -> Any:
    """The state at the start; on a mesh each device makes its own shards."""
    if layout is None:
        return transformation.init(params)
    places = shardings(opt_state_like(transformation, params, layout))
    return jax.jit(transformation.init, out_shardings=places)(params)


def descend(
    transformation: optax.GradientTransformation,
    params: Params,
    opt_state: Any,
    gradient: Params,
    like: Params,
    layout: Layout | None,
) -> tuple[Params, Any]:
    """One update of parameters and of the optimizer's state; each device updates its own shards.

    Args:
      like: where the parameters lie; of no meaning without a layout.
    """
    updates, opt_state = transformation.update(gradient, opt_state, params)
    params = optax.apply_updates(params, updates)
    if layout is None:
        return params, opt_state
    state_like = opt_state_like(transformation, like, layout)
    return constrain_like(params, like), constrain_like(opt_state, state_like)
