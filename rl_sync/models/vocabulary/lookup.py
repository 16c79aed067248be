"""Looks up embeddings in a table that is sharded over several devices.

The table is never gathered. Each device looks up the tokens of all rows that need its shard, and
sends the embeddings to the devices of these rows. Gradients take the same way back, and each device
sums the gradient of its own shard in float32.

Letters in shapes: B rows, T positions, V vocab, D embed.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rl_sync.models.vocabulary.vocabulary_cuts import Cuts, own_part


class Lookup(NamedTuple):
    """A lookup in one table.

    Attributes:
      cuts: sharding of the table and the rows.
      vocab: number of rows of a device's shard of the table.
      table_dtype, dtype: dtype of the table, and of the result.
    """

    cuts: Cuts
    vocab: int
    table_dtype: DTypeLike
    dtype: str


def lookup(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], dtype: str
) -> Float[Array, "B T D"]:
    """Looks up the embedding of each token, under a layout of several devices.

    Args:
      dtype: dtype of the result.
    """
    cuts = Cuts.of(table.shape, tokens.shape)
    vocab = table.shape[0] // cuts.size(cuts.vocab)
    return _lookup(Lookup(cuts, vocab, table.dtype, dtype), table, tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _lookup(
    of: Lookup, table: Float[Array, "V D"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    cuts = of.cuts
    inputs = (cuts.matrix_spec, cuts.row_spec)
    take = functools.partial(_take, of)
    return cuts.mapped(take, table, tokens, inputs=inputs, outputs=cuts.row_spec)


def _forward(
    of: Lookup, table: Float[Array, "V D"], tokens: Int[Array, "B T"]
) -> tuple[Float[Array, "B T D"], Int[Array, "B T"]]:
    return _lookup(of, table, tokens), tokens


def _backward(
    of: Lookup, tokens: Int[Array, "B T"], gradient: Float[Array, "B T D"]
) -> tuple[Float[Array, "V D"], None]:
    cuts = of.cuts
    inputs = (cuts.row_spec, cuts.row_spec)
    add = functools.partial(_add, of)
    return cuts.mapped(add, tokens, gradient, inputs=inputs, outputs=cuts.matrix_spec), None


_lookup.defvjp(_forward, _backward)


def _take(
    of: Lookup, table: Float[Array, "V D"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """Looks up embeddings on each device, and exchanges them."""
    cuts, ids = of.cuts, _places(of, tokens)
    found = table.at[ids].get(mode="fill", fill_value=0).astype(of.dtype)
    last = found.ndim - 1
    for axis in _exchanges(cuts):
        if axis in cuts.embed and axis in cuts.tokens:
            last -= 1
            found = jax.lax.all_to_all(found, axis, split_axis=0, concat_axis=last + 1, tiled=True)
            found = found[0]
        elif axis in cuts.embed:
            found = jax.lax.all_gather(found, axis, axis=last, tiled=True)
        elif axis in cuts.tokens:
            last -= 1
            found = jax.lax.psum_scatter(found, axis, scatter_dimension=0)
        else:
            found = jax.lax.psum(found, axis)
    return found


def _add(
    of: Lookup, tokens: Int[Array, "B T"], gradient: Float[Array, "B T D"]
) -> Float[Array, "V D"]:
    """Inverts the exchanges of `_take`, and sums the gradient of each device's shard."""
    cuts = of.cuts
    for axis in reversed(_exchanges(cuts)):
        if axis in cuts.embed and axis in cuts.tokens:
            gradient = jax.lax.all_to_all(
                gradient[None], axis, split_axis=gradient.ndim, concat_axis=0, tiled=True
            )
        elif axis in cuts.embed:
            gradient = own_part(gradient, axis, gradient.ndim - 1)
        elif axis in cuts.tokens:
            gradient = jax.lax.all_gather(gradient, axis)
    total = jnp.zeros((of.vocab, gradient.shape[-1]), jnp.float32)
    total = total.at[_places(of, tokens)].add(gradient.astype(jnp.float32), mode="drop")
    total = jax.lax.psum(total, cuts.repeated) if cuts.repeated else total
    return total.astype(of.table_dtype)


def _exchanges(cuts: Cuts) -> tuple[str, ...]:
    """Returns the mesh axes in the order in which `_take` exchanges along them."""
    return (*reversed(cuts.embed), *cuts.vocab)


def _places(of: Lookup, tokens: Int[Array, "B T"]) -> Int[Array, "... B T"]:
    """Returns where tokens are in this device's shard of the table.

    The tokens are those of all sequences that need the shard. There is a leading axis for each mesh
    axis along which they are exchanged, in the order of `_take`'s exchanges. A token of another
    shard has an index after the last row of the table.
    """
    for axis in reversed(_exchanges(of.cuts)):
        if axis in of.cuts.tokens:
            tokens = jax.lax.all_gather(tokens, axis)
    if not of.cuts.vocab:
        return tokens
    ids = tokens - jax.lax.axis_index(of.cuts.vocab) * of.vocab
    return jnp.where((ids >= 0) & (ids < of.vocab), ids, of.vocab)
