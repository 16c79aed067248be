"""The receiver of artifacts: applies them beside the version that it holds, and verifies them."""

from __future__ import annotations

import concurrent.futures
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.deltas.artifact import FULL, Artifact, BlockName, HeldVersion
from rl_sync.weights.deltas.encoding import BLOCK_BYTES, Bytes, EncodingError, decode, empty
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsMismatchError
from rl_sync.weights.parts import Arrivals

_MOST_THREADS = 8
_threads = concurrent.futures.ThreadPoolExecutor(
    min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="apply"
)


class HeldWeights(NamedTuple):
    """A version as its receiver has it.

    Attributes:
      version: the version.
      arrivals: the way of its parts into the receiver's shardings.
      parts: their bytes, which differences are applied to.
      params: the same on the receiver's devices.
    """

    version: HeldVersion
    arrivals: Arrivals
    parts: Mapping[int, Bytes]
    params: Params


def installed(
    target: HeldVersion,
    arrivals: Arrivals,
    parts: Mapping[int, Bytes],
    check_digest: bool = True,
) -> HeldWeights:
    """Places a version that has arrived on the devices, and compares its digest.

    Args:
      target: the version.
      arrivals: the way of its parts into the receiver's shardings.
      parts: bytes of each part of `arrivals.wanted`.
      check_digest: whether the digest is compared.

    Raises:
      WeightsMismatchError: the digest is another one than the published one.
    """
    params = _on_devices(parts, arrivals)
    if check_digest and (found := digest(params)) != target.digest:
        raise WeightsMismatchError(target.version, target.digest, found)
    return HeldWeights(target, arrivals, parts, params)


def applied(
    route: Sequence[Artifact],
    held: Mapping[int, Bytes],
    sizes: Mapping[int, int],
    itemsizes: Mapping[int, int],
    payloads: Mapping[BlockName, bytes | memoryview],
) -> dict[int, Bytes]:
    """Returns the parts of a version; what is held is only read.

    Args:
      route: the artifacts, in order: differences on the held version, or a full copy; none for
        the held version itself.
      held: the parts of the held version; not used if the route begins with a full copy.
      sizes: bytes of each part that is wanted.
      itemsizes: bytes of an element of each part.
      payloads: all blocks of these parts that have bytes.

    Raises:
      EncodingError: a block is missing or damaged, or the list of blocks does not fit the parts.
    """
    on_base = not route or route[0].key.base != FULL
    new = {part: empty(size) for part, size in sizes.items()}

    def fill(place: tuple[int, int, int]) -> None:
        part, number, start = place
        block = new[part][start : start + BLOCK_BYTES]
        if on_base:
            block[:] = held[part][start : start + BLOCK_BYTES]
        for artifact in route:
            encoding = artifact.parts[part].encodings[number]
            payload: bytes | memoryview = b""
            if artifact.parts[part].sizes[number]:
                try:
                    payload = payloads[BlockName(artifact.key, part, number)]
                except KeyError:
                    raise EncodingError(f"block {number} of part {part} is missing") from None
            decode(encoding, payload, block, itemsizes[part])

    _check_counts(route, sizes)
    for _ in _threads.map(fill, _places(sizes)):
        pass
    return new


def _on_devices(parts: Mapping[int, Bytes], arrivals: Arrivals) -> Params:
    """Assembles the parameters from the bytes of the parts that this process needs."""

    def arrive(number: int) -> Array:
        wanted = arrivals.wanted[number]
        assert parts[number].nbytes == math.prod(wanted.shape) * wanted.dtype.itemsize
        values = parts[number].view(wanted.dtype).reshape(wanted.shape)
        return jax.device_put(values, wanted.sharding)

    return jax.tree.unflatten(arrivals.tree, arrivals.assembled(arrive))


def _places(sizes: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    for part, size in sizes.items():
        for number, start in enumerate(range(0, size, BLOCK_BYTES)):
            yield part, number, start


def _check_counts(route: Sequence[Artifact], sizes: Mapping[int, int]) -> None:
    for artifact in route:
        for part, size in sizes.items():
            due, there = -(-size // BLOCK_BYTES), len(artifact.parts[part].encodings)
            if due != there:
                raise EncodingError(f"part {part} of {artifact.key} has {there} blocks, not {due}")
