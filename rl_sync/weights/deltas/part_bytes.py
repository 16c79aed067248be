"""Parts of the parameters as bytes on the host, and back as arrays on devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.deltas.encoding import Bytes
from rl_sync.weights.parts import Arrivals


class CutVersion(NamedTuple):
    """A version on the devices: copies of its parts, by number, and its digest."""

    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: UInt32[Array, " 2"]


def on_host(parts: Mapping[int, Shaped[Array, "*part"]]) -> dict[int, Bytes]:
    """Returns the bytes of each part; on a CPU, the part's own memory."""
    return {
        number: np.ascontiguousarray(np.asarray(part)).reshape(-1).view(np.uint8)
        for number, part in parts.items()
    }


def on_devices(parts: Mapping[int, Bytes], arrivals: Arrivals) -> Params:
    """Assembles the parameters from the bytes of the parts that this process needs.

    Args:
      parts: bytes of each part of `arrivals.wanted`.
      arrivals: the way of parts into this program's shardings.
    """

    def arrive(number: int) -> Array:
        wanted = arrivals.wanted[number]
        assert parts[number].nbytes == math.prod(wanted.shape) * wanted.dtype.itemsize
        values = parts[number].view(wanted.dtype).reshape(wanted.shape)
        return jax.device_put(values, wanted.sharding)

    return jax.tree.unflatten(arrivals.tree, arrivals.assembled(arrive))
