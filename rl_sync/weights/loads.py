"""Loads: buckets as arrays, which devices send and receive at a turn of a transfer.

A large piece that is a device's whole part of a parameter is sent and kept as it is. Other pieces
are cut out by the sender and put together by the receiver.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Shaped

from rl_sync.weights.digest import UNSIGNED
from rl_sync.weights.packing import Cut, cut_of, pack, put, take, unpack
from rl_sync.weights.routes import WORD_BYTES, Box, Bucket, Piece

_GROUP = 8

Load = list[Shaped[Array, "*shape"]]
"""A bucket on a device: its single pieces, and then, if there are any, the words."""


Kinds = tuple[tuple[tuple[int, ...], np.dtype], ...]
"""Shapes and dtypes."""


def load(
    bucket: Bucket, arrays: Sequence[Shaped[Array, "*shape"]], held: Sequence[Box], words: int
) -> Load:
    """Builds the load that a device sends.

    Args:
      arrays: its part of every parameter.
      held: the boxes of these parts.
      words: the number of words to send besides the single pieces.
    """
    pieces: dict[Piece, Shaped[Array, "*piece"]] = {}
    for group in _groups([p for p in bucket.single if p.box != held[p.leaf]]):
        cut = cut_of(group, held)
        taken = take([arrays[leaf] for leaf in cut.leaves], cut.starts, sizes=cut.sizes)
        pieces |= zip(group, taken, strict=True)
    single = [_sent(pieces.get(piece, arrays[piece.leaf])) for piece in bucket.single]
    if not words:
        return single
    if not bucket.packed:  # Other devices send words at this turn.
        (device,) = arrays[0].devices()
        return [*single, jnp.zeros((words,), jnp.uint32, device=device)]
    cut = cut_of(bucket.packed, held)
    packed = pack([arrays[leaf] for leaf in cut.leaves], cut.starts, sizes=cut.sizes, words=words)
    return [*single, packed]


def _groups(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Splits pieces into small groups, as programs for hundreds of pieces take long to compile.

    Programs for small groups are often the same.
    """
    return [pieces[i : i + _GROUP] for i in range(0, len(pieces), _GROUP)]


def _sent(piece: Shaped[Array, "*piece"]) -> Shaped[Array, "*piece"]:
    (device,) = piece.devices()
    return _with_dtype(piece, wire_dtype(piece.dtype, device.platform))


class Landing:
    """Assembles the loads that arrive on a device.

    Args:
      like: the parameters' dtypes.
      held: the box of every parameter that the device will have.
    """

    def __init__(
        self, device: jax.Device, like: Sequence[jax.ShapeDtypeStruct], held: Sequence[Box]
    ) -> None:
        self._device, self._like, self._held = device, like, held
        self._arrays: dict[int, Shaped[Array, "*shape"]] = {}

    def add(self, bucket: Bucket, load: Load) -> None:
        """Adds the load of a bucket."""
        parts: dict[Piece, Shaped[Array, "*piece"]] = {}
        singles = load[: len(bucket.single)]  # Words may follow them.
        for piece, sent in zip(bucket.single, singles, strict=True):
            array = _with_dtype(sent, self._like[piece.leaf].dtype)
            if piece.box == self._held[piece.leaf]:
                self._arrays[piece.leaf] = array
            else:
                parts[piece] = array
        for group in _groups(list(parts)):
            cut = cut_of(group, self._held)
            pieces = [parts[piece] for piece in group]
            self._keep(cut, put(self._room(cut.leaves), pieces, cut.starts, sizes=cut.sizes))
        if bucket.packed:
            cut = cut_of(bucket.packed, self._held)
            self._keep(cut, unpack(self._room(cut.leaves), load[-1], cut.starts, sizes=cut.sizes))

    def arrays(self) -> list[Shaped[Array, "*shape"]]:
        """Returns the device's part of every parameter."""
        return self._room(range(len(self._held)))

    def _room(self, leaves: Sequence[int]) -> list[Shaped[Array, "*shape"]]:
        """Returns what has arrived of some parameters; zeros for those of which nothing has."""
        missing = [leaf for leaf in leaves if leaf not in self._arrays]
        shapes = [tuple(high - low for low, high in self._held[leaf]) for leaf in missing]
        kinds = zip(shapes, (self._like[leaf].dtype for leaf in missing), strict=True)
        self._arrays |= zip(missing, blanks(self._device, tuple(kinds)), strict=True)
        return [self._arrays[leaf] for leaf in leaves]

    def _keep(self, cut: Cut, arrays: Sequence[Shaped[Array, "*shape"]]) -> None:
        self._arrays |= zip(cut.leaves, arrays, strict=True)


def blanks(device: jax.Device, kinds: Kinds) -> list[Shaped[Array, "*shape"]]:
    """Makes zeros of some shapes and dtypes on a device, in one program."""
    return _zeros(kinds, SingleDeviceSharding(device)) if kinds else []


@functools.partial(jax.jit, static_argnums=(0, 1))
def _zeros(kinds: Kinds, place: SingleDeviceSharding) -> list[Shaped[Array, "*shape"]]:
    made = [jnp.zeros(*kind) for kind in kinds]
    return [jax.lax.with_sharding_constraint(x, place) for x in made]


def wire_dtype(dtype: np.dtype, platform: str) -> np.dtype:
    """Returns the dtype in which a single piece is sent.

    On CPUs XLA widens floats of less than 32 bits to float32 for a transfer, which doubles their
    bytes and changes NaNs. It leaves integers as they are.
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < WORD_BYTES
    return np.dtype(UNSIGNED[dtype.itemsize]) if narrow and platform == "cpu" else dtype


def _with_dtype(x: Shaped[Array, "*shape"], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """Views an array, whose memory is the host's, as another dtype."""
    return x if x.dtype == dtype else jax.device_put(np.asarray(x).view(dtype), x.sharding)
