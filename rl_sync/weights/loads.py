"""What devices send and get at a turn of a transfer: buckets as arrays.

Large pieces that are a device's whole part of a parameter are sent and kept as they are; others are
cut out there and put together here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.packing import Cut, cut_of, pack, put, take, unpack
from rl_sync.weights.routes import WORD_BYTES, Box, Bucket

Load = list[Shaped[Array, "*shape"]]
"""A bucket on a device: its single pieces, and then, if there are any, the words."""


def load(
    bucket: Bucket, arrays: Sequence[Shaped[Array, "*shape"]], held: Sequence[Box], words: int
) -> Load:
    """What a device sends.

    Args:
      arrays: its part of every parameter.
      held: the boxes that those are.
      words: how many words to send besides the single pieces.
    """
    whole = [piece.box == held[piece.leaf] for piece in bucket.single]
    cut = cut_of(list(itertools.compress(bucket.single, map(operator.not_, whole))), held)
    taken = iter(take([arrays[leaf] for leaf in cut.leaves], cut.starts, sizes=cut.sizes))
    pairs = zip(bucket.single, whole, strict=True)
    single = [_sent(arrays[piece.leaf] if is_whole else next(taken)) for piece, is_whole in pairs]
    if not words:
        return single
    if not bucket.packed:  # Others send words at this turn.
        (device,) = arrays[0].devices()
        return [*single, jnp.zeros((words,), jnp.uint32, device=device)]
    cut = cut_of(bucket.packed, held)
    packed = pack([arrays[leaf] for leaf in cut.leaves], cut.starts, sizes=cut.sizes, words=words)
    return [*single, packed]


def _sent(piece: Shaped[Array, "*piece"]) -> Shaped[Array, "*piece"]:
    (device,) = piece.devices()
    return _with_dtype(piece, wire_dtype(piece.dtype, device.platform))


class Landing:
    """Puts what arrives on a device together.

    Args:
      like: the parameters' dtypes.
      held: the box of every parameter that the device is to have.
    """

    def __init__(
        self, device: jax.Device, like: Sequence[jax.ShapeDtypeStruct], held: Sequence[Box]
    ) -> None:
        self._device, self._like, self._held = device, like, held
        self._arrays: dict[int, Shaped[Array, "*shape"]] = {}

    def add(self, bucket: Bucket, load: Load) -> None:
        """Takes in a bucket."""
        parts = []
        singles = load[: len(bucket.single)]  # Words may come after them.
        for piece, sent in zip(bucket.single, singles, strict=True):
            array = _with_dtype(sent, self._like[piece.leaf].dtype)
            if piece.box == self._held[piece.leaf]:
                self._arrays[piece.leaf] = array
            else:
                parts.append((piece, array))
        if parts:
            cut = cut_of([piece for piece, _ in parts], self._held)
            pieces = [array for _, array in parts]
            self._keep(cut, put(self._room(cut), pieces, cut.starts, sizes=cut.sizes))
        if bucket.packed:
            cut = cut_of(bucket.packed, self._held)
            self._keep(cut, unpack(self._room(cut), load[-1], cut.starts, sizes=cut.sizes))

    def arrays(self) -> list[Shaped[Array, "*shape"]]:
        """The device's part of every parameter."""
        return [self._array(leaf) for leaf in range(len(self._held))]

    def _room(self, cut: Cut) -> list[Shaped[Array, "*shape"]]:
        return [self._array(leaf) for leaf in cut.leaves]

    def _keep(self, cut: Cut, arrays: Sequence[Shaped[Array, "*shape"]]) -> None:
        self._arrays |= zip(cut.leaves, arrays, strict=True)

    def _array(self, leaf: int) -> Shaped[Array, "*shape"]:
        """What has arrived of a parameter; zeros where nothing has."""
        if leaf in self._arrays:
            return self._arrays[leaf]
        shape = tuple(high - low for low, high in self._held[leaf])
        return jnp.zeros(shape, self._like[leaf].dtype, device=self._device)


def wire_dtype(dtype: np.dtype, platform: str) -> np.dtype:
    """As what a single piece of a dtype travels: on CPUs XLA widens floats of less than 32 bits
    to float32 on their way, which doubles their bytes and changes NaNs, but no integers."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < WORD_BYTES
    return np.dtype(UNSIGNED[dtype.itemsize]) if narrow and platform == "cpu" else dtype


def _with_dtype(x: Shaped[Array, "*shape"], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """An array's memory, which is the host's, as another dtype."""
    return x if x.dtype == dtype else jax.device_put(np.asarray(x).view(dtype), x.sharding)
