"""Loads the parameters of a Hugging Face directory onto their devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rl_sync.models.config import HEAD, ModelConfig
from rl_sync.models.huggingface.names import Overlap, ParameterParts, assemblies, overlap
from rl_sync.models.huggingface.reading import TensorFiles, check
from rl_sync.types import Params


def load_params(directory: Path, config: ModelConfig, abstract: Params) -> Params:
    """Loads the parameters of a directory, each directly into its own shards.

    It loads only the parameters at the top of `abstract`, which may lack the scalar head.

    The host never holds more than one tensor of the files. The parts of each tensor that this
    process's devices need are read, copied into their buffers, and dropped.

    Args:
      directory: see `locate`.
      config: the config from `load_config`; fields that we choose may differ.
      abstract: abstract params in the tree of `init_params`, with the dtype and the sharding of
        each array.

    Raises:
      ValueError: a tensor is missing, unknown, or of another shape than config.json implies.
    """
    tensors = TensorFiles(directory)
    check(directory, tensors, config, needs_head=HEAD in abstract)
    tree = assemblies(config, tensors.naming)
    tree = {name: tree[name] for name in abstract}
    return jax.tree.map(functools.partial(_assemble, tensors), tree, abstract)


def _assemble(
    tensors: TensorFiles, assembly: ParameterParts, abstract: jax.ShapeDtypeStruct
) -> Array:
    """Assembles one parameter, shard by shard."""
    sharding = abstract.sharding
    assert sharding is not None, "parameters are read into a sharding"
    shape, dtype = abstract.shape, abstract.dtype
    # Devices with the same window share one read.
    devices: dict[tuple[tuple[int, int, int], ...], list[jax.Device]] = {}
    for device, window in sharding.addressable_devices_indices_map(shape).items():
        assert window is not None
        key = tuple(part.indices(size) for part, size in zip(window, shape, strict=True))
        devices.setdefault(key, []).append(device)
    shards = {
        device: jnp.zeros([last - first for first, last, _ in key], dtype, device=device)
        for key, holders in devices.items()
        for device in holders
    }
    for piece in assembly.pieces:
        for key, holders in devices.items():
            part = overlap(assembly, piece, shape, [slice(first, last) for first, last, _ in key])
            if part is None:
                continue
            values = tensors.read(piece.tensor, part.read)
            for device in holders:
                shards[device] = _placed(shards[device], values, part)
            del values
    return jax.make_array_from_single_device_arrays(shape, sharding, list(shards.values()))


def _placed(shard: Array, values: np.ndarray, part: Overlap) -> Array:
    """Writes the values into the shard and returns it; no reference to the values remains."""
    on_device = jax.device_put(values, shard.sharding)
    start = np.asarray(part.start, np.int32)
    placed = _written(shard, on_device, start, part.view, part.cut, part.order)
    placed.block_until_ready()
    on_device.delete()
    # An array on a CPU may use numpy's memory, which JAX releases only at its next call.
    jax.device_put(start)
    return placed


@functools.partial(jax.jit, static_argnums=(3, 4, 5), donate_argnums=0)
def _written(
    shard: Array,
    values: Array,
    start: Array,
    view: tuple[int, ...],
    cut: Sequence[tuple[int, int]],
    order: tuple[int, ...],
) -> Array:
    """Writes the values of a tensor into the shard, whose buffer is donated."""
    block = values.reshape(view)[tuple(slice(*ends) for ends in cut)].transpose(order)
    return jax.lax.dynamic_update_slice(shard, block.astype(shard.dtype), tuple(start))
