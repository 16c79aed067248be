"""Arrival of an explorer's parameters: the parts that it fetches, and the leaves made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.assembly import Assembly
from rl_sync.weights.regions import Region, device_regions, overlap
from rl_sync.weights.server_manifest import Manifest


class Arrivals:
    """Makes this process's shards of each version from the parts; planned once.

    Args:
      like: the parameters as arrays or `jax.ShapeDtypeStruct`s, with the target shardings.
      manifest: the parts.

    Attributes:
      wanted: the parts that are needed here, in the order of need: the shape and dtype of each, and
        the device where it arrives.
    """

    def __init__(self, like: Params, manifest: Manifest) -> None:
        self._manifest, self._dtypes = manifest, manifest.dtypes
        self._leaves, self._treedef = jax.tree.flatten(like)
        self._held: dict[jax.Device, dict[int, Region]] = {}
        for number, leaf in enumerate(self._leaves):
            for device, region in device_regions(leaf).items():
                if device.process_index == jax.process_index():
                    self._held.setdefault(device, {})[number] = region
        self._readers, self._new = self._needs()
        likes = manifest.likes()
        self.wanted = {
            part: jax.ShapeDtypeStruct(
                likes[part].shape, likes[part].dtype, sharding=SingleDeviceSharding(devices[0])
            )
            for part, devices in self._readers.items()
        }

    def assemble(
        self, arrive: Callable[[int], Array], finish: Callable[[int, Array], None]
    ) -> Params:
        """Makes the parameters of one version.

        Args:
          arrive: returns a part, and may wait for it; called once for each wanted part.
          finish: called with each leaf and its number in flattening order, once its local shards
            are complete.
        """
        assemblies = {
            device: Assembly(device, self._dtypes, held) for device, held in self._held.items()
        }
        leaves = []
        for number, like in enumerate(self._leaves):
            for part in self._new[number]:
                pieces, value = self._manifest.parts[part].pieces, arrive(part)
                first, *others = self._readers[part]
                copies = {first: value} | {other: jax.device_put(value, other) for other in others}
                for device, copy in copies.items():
                    if len(pieces) == 1:
                        assemblies[device].add(pieces, [copy])
                    else:
                        assemblies[device].add_packed(pieces, copy)
            shards = [of.pop(number) for d, of in assemblies.items() if number in self._held[d]]
            leaves.append(_whole(like, shards))
            finish(number, leaves[-1])
        return jax.tree.unflatten(self._treedef, leaves)

    def _needs(self) -> tuple[dict[int, list[jax.Device]], list[list[int]]]:
        """Returns the devices that need each part, and for each leaf the parts first needed."""
        pieces: dict[int, list[tuple[int, Region]]] = {}
        for index, part in enumerate(self._manifest.parts):
            for leaf, region in part.pieces:
                pieces.setdefault(leaf, []).append((index, region))
        readers: dict[int, list[jax.Device]] = {}
        new: list[list[int]] = [[] for _ in self._leaves]
        for number, first_needed in enumerate(new):
            for device, held in self._held.items():
                for index, region in pieces.get(number, []):
                    if number not in held or overlap(region, held[number]) is None:
                        continue
                    if index not in readers:
                        readers[index] = []
                        first_needed.append(index)
                    if device not in readers[index]:
                        readers[index].append(device)
        return readers, new


def _whole(leaf: Any, shards: list[Array]) -> Array:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return shards[0]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)
