"""Updates by an optimizer whose state is sharded like the parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from rl_sync.learning.optimizer import ClippedOptimizer
from rl_sync.models.placement import constrain_like, in_host_memory, move, shardings
from rl_sync.models.sharding import Layout
from rl_sync.types import Params

T = TypeVar("T")
_Held = tuple[Params, optax.OptState]
"""Parameters of all layers, and the state of their optimizer."""

_BLOCKS = "blocks"
"""Name of the parameters whose first axis is the layers."""


@dataclasses.dataclass(frozen=True)
class ShardedOptimizer:
    """An optimizer, and the shardings of its parameters and of its state.

    Attributes:
      transformation: the optimizer.
      abstract: shapes, dtypes and shardings of the parameters.
      layout: sharding of the parameters.
      offloaded: whether the optimizer's state is in host memory between updates.
    """

    transformation: ClippedOptimizer
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
        of = self.transformation
        if self.offloaded and of.is_elementwise and _BLOCKS in params:
            gradient, clipping = of.clipping.update(gradient, opt_state[0], params)
            params, rule = self._by_layers(params, opt_state[1], gradient, learns)
            return params, (clipping, rule)
        if self.offloaded:
            opt_state = move(opt_state, self._on_devices)
        params, opt_state = _updated(of, params, opt_state, gradient, learns)
        params = constrain_like(params, self.abstract)
        opt_state = constrain_like(opt_state, self._on_devices)
        if self.offloaded:
            opt_state = move(opt_state, self.abstract_state())
        return params, opt_state

    def _by_layers(
        self, params: Params, state: optax.OptState, gradient: Params, learns: Bool[Array, ""]
    ) -> tuple[Params, optax.OptState]:
        """Updates one layer after the other, and then the other parameters.

        So devices hold the optimizer's state of few layers at a time. If it were moved as a whole,
        the compiler would start that before the gradients are computed.

        Args:
          state: state of the optimizer's rule, in host memory.
          gradient: clipped gradient.
          learns: see `update`.
        """
        rule = self.transformation.rule
        others = [name for name in params if name != _BLOCKS]
        abstract = self._on_devices[1], self.abstract_state()[1]
        of_layer = [_mapped(_without_layers, _chosen(tree, [_BLOCKS])) for tree in abstract]
        of_others = [_chosen(tree, others) for tree in abstract]

        def take(layer: Int[Array, ""], held: _Held) -> _Held:
            def of(tree: T) -> T:
                return _mapped(lambda x: jax.lax.dynamic_index_in_dim(x, layer, 0, False), tree)

            def put(new: Array, whole: Array) -> Array:
                return jax.lax.dynamic_update_index_in_dim(whole, new, layer, 0)

            blocks, of_blocks = held
            before = move(of(of_blocks), of_layer[0])
            block, after = _updated(
                rule, {_BLOCKS: of(blocks)}, before, {_BLOCKS: of(gradient[_BLOCKS])}, learns
            )
            # Counts stay for the next layer.
            return _mapped(put, (block[_BLOCKS], move(after, of_layer[1])), held)

        held = params[_BLOCKS], _chosen(state, [_BLOCKS])
        layers = jax.tree.leaves(params[_BLOCKS])[0].shape[0]
        blocks, of_blocks = jax.lax.fori_loop(0, layers, take, held)
        rest, after = _updated(
            rule,
            {name: params[name] for name in others},
            move(_chosen(state, others), of_others[0]),
            {name: gradient[name] for name in others},
            learns,
        )
        after = move(constrain_like(after, of_others[0]), of_others[1])
        params = constrain_like({**rest, _BLOCKS: blocks}, self.abstract)
        return params, jax.tree.map(
            lambda a, b: {**a, **b} if _is_tree(a) else a, after, of_blocks, is_leaf=_is_tree
        )


def _updated(
    transformation: ClippedOptimizer | optax.GradientTransformation,
    params: Params,
    state: optax.OptState,
    gradient: Params,
    learns: Bool[Array, ""],
) -> tuple[Params, optax.OptState]:
    """Returns the parameters and the state after an update, or those before it."""
    changes, after = transformation.update(gradient, state, params)
    updated = optax.apply_updates(params, changes), after
    return jax.tree.map(lambda new, old: jnp.where(learns, new, old), updated, (params, state))


def _mapped(function: Callable[..., object], tree: T, whole: T | None = None) -> T:
    """Applies a function to all arrays; scalars, such as counts, are those of the last tree."""
    if whole is None:
        return jax.tree.map(lambda x: function(x) if x.ndim else x, tree)
    return jax.tree.map(lambda x, of: function(x, of) if of.ndim else of, tree, whole)


def _without_layers(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding = x.sharding.update(spec=jax.sharding.PartitionSpec(*x.sharding.spec[1:]))
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=sharding)


def _is_tree(part: object) -> bool:
    """Says whether a part of an optimizer's state is a tree like the parameters."""
    return isinstance(part, dict)


def _chosen(state: optax.OptState, names: Sequence[str]) -> optax.OptState:
    """Returns an optimizer's state for the parameters of some names."""
    return jax.tree.map(
        lambda x: {name: x[name] for name in names if name in x} if _is_tree(x) else x,
        state,
        is_leaf=_is_tree,
    )


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
    transformation: ClippedOptimizer, params: Params, layout: Layout
) -> optax.OptState:
    """Returns shapes, dtypes and shardings of an optimizer's state.

    State whose shape differs from its parameter's, such as Adafactor's factors, is replicated.

    Args:
      params: the trained parameters; arrays or `jax.ShapeDtypeStruct`s, with shardings.
    """

    def placed(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def like_parameter(leaf: Any, param: Any) -> Any:
        if _is_left_out(leaf):
            return leaf
        return placed(leaf, param.sharding if leaf.shape == param.shape else layout.repeated)

    return optax.tree_map_params(
        transformation,
        like_parameter,
        jax.eval_shape(transformation.init, params),
        params,
        transform_non_params=lambda leaf: placed(leaf, layout.repeated),
        is_leaf=_is_left_out,
    )


def _is_left_out(part: object) -> bool:
    """Says whether a part of an optimizer's state stands for parameters that are not trained."""
    return isinstance(part, optax.MaskedNode)
