"""Shards the vocabulary matrix over several devices, and exchanges its shards.

The matrix maps a token to its embedding, or a hidden state to logits. Its two axes are sharded, and
so are the rows of a batch, partly along the same mesh axes. The functions run inside `Cuts.mapped`,
where each device has its own shards.

Letters in shapes: B rows, V vocab, D embed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float, Shaped

from rl_sync.models.sharding import in_use

T = TypeVar("T")


class Cuts(NamedTuple):
    """Mesh axes of the current layout that shard the vocabulary matrix and the rows.

    Attributes:
      mesh: mesh of all devices.
      rows: mesh axes that shard the rows of a batch.
      positions: mesh axes that shard the positions of a row.
      vocab, embed: mesh axes that shard the matrix.
    """

    mesh: Mesh | AbstractMesh
    rows: tuple[str, ...]
    positions: tuple[str, ...]
    vocab: tuple[str, ...]
    embed: tuple[str, ...]

    @classmethod
    def of(cls, matrix: tuple[int, ...], tokens: tuple[int, ...]) -> Cuts:
        """Returns the cuts of a matrix of this shape, and of tokens [B, T] of this shape."""
        layout = in_use()
        if layout.mesh.size == 1:
            return cls(layout.mesh, (), (), (), ())
        vocab, embed = layout.cuts(("vocab", "embed"), matrix)
        rows, positions = layout.cuts(("batch", "length"), tokens)
        return cls(layout.mesh, rows, positions, vocab, embed)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Mesh axes along which devices have different tokens."""
        return (*self.rows, *self.positions)

    @property
    def matrix_spec(self) -> PartitionSpec:
        """Sharding of the matrix."""
        return PartitionSpec(self.vocab or None, self.embed or None)

    @property
    def row_spec(self) -> PartitionSpec:
        """Sharding of arrays whose first axes are rows and positions."""
        return PartitionSpec(self.rows or None, self.positions or None)

    @property
    def apart(self) -> tuple[str, ...]:
        """Mesh axes along which devices have the same tokens, and other parts of the vocabulary.

        Logits stay sharded along them.
        """
        return tuple(axis for axis in self.vocab if axis not in self.tokens)

    @property
    def shared(self) -> tuple[str, ...]:
        """Mesh axes along which devices have other tokens and other parts of the vocabulary.

        The vocabulary is gathered along them.
        """
        return tuple(axis for axis in self.vocab if axis in self.tokens)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Mesh axes along which devices have the same shard of the matrix, and different tokens.

        The matrix's gradient is summed along them.
        """
        return tuple(axis for axis in self.tokens if axis not in self.vocab + self.embed)

    def size(self, axes: tuple[str, ...]) -> int:
        """Returns the number of shards of an axis along some mesh axes."""
        return functools.reduce(lambda parts, axis: parts * self.mesh.shape[axis], axes, 1)

    def mapped(
        self,
        function: Callable[..., T],
        *given: Any,
        inputs: tuple[Any, ...],
        outputs: Any,
    ) -> T:
        """Calls a function on each device's shards; on one device, with whole arrays.

        Args:
          inputs, outputs: shardings of the arguments and of the results.
        """
        if self.mesh.size == 1:
            return function(*given)
        call = jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )
        return call(*given)


def own_part(x: Shaped[Array, ...], axis: str, dimension: int) -> Shaped[Array, ...]:
    """Returns this device's part of an array that all devices along a mesh axis have."""
    size = x.shape[dimension] // jax.lax.axis_size(axis)
    start = jax.lax.axis_index(axis) * size
    return jax.lax.dynamic_slice_in_dim(x, start, size, dimension)


def gathered(cuts: Cuts, shard: Float[Array, "D V"]) -> Float[Array, "D V"]:
    """Gathers the matrix for logits of this device's rows: all of D, but V only along `shared`."""
    for axis in reversed(cuts.embed):
        shard = jax.lax.all_gather(shard, axis, axis=0, tiled=True)
    return gathered_vocab(cuts, shard)


def gathered_vocab(cuts: Cuts, shard: Shaped[Array, "... V"]) -> Shaped[Array, "... V"]:
    """Gathers V along `shared`, not along `apart`."""
    for axis in reversed(cuts.vocab):
        if axis in cuts.tokens:
            shard = jax.lax.all_gather(shard, axis, axis=shard.ndim - 1, tiled=True)
    return shard


def reduced(cuts: Cuts, gradient: Float[Array, "D V"]) -> Float[Array, "D V"]:
    """Sums the gradients of the matrix that `gathered` returns, into this device's shard.

    The sum over `repeated` is not included.
    """
    for axis in cuts.vocab:
        if axis in cuts.tokens:
            gradient = jax.lax.psum_scatter(gradient, axis, scatter_dimension=1, tiled=True)
    for axis in cuts.embed:
        if axis in cuts.tokens:
            gradient = jax.lax.psum_scatter(gradient, axis, scatter_dimension=0, tiled=True)
        else:
            gradient = own_part(gradient, axis, 0)
    return gradient
