"""Runs with a real model's shape, and weights for them that need no memory beside themselves."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from compiled_cases import SHAPES
from jax import lax

from rl_sync.models.quantization import SCALE
from rl_sync.types import Params

_GOLDEN, _SILVER = 0x9E3779B1, 0x85EBCA6B
_SCALE = 0.035  # As wide as a normal distribution with a deviation of 0.02.
_QUANTIZED = 64
"""Greatest magnitude of the numbers of a quantized kernel."""

_SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def shape_directory(name: str, small: bool, **changes: int) -> str:
    """Returns a directory with the config.json of a model.

    Args:
      name: a directory of `benchmarks/shapes/`.
      small: whether all sizes are small, in place of the model's.
      changes: entries of config.json to change.
    """
    changes = {**(_SMALL if small else {}), **changes}
    if not changes:
        return str(SHAPES / name)
    folder = Path(tempfile.mkdtemp(prefix="shape-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = json.loads((SHAPES / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return str(folder)


def random_weights(abstract: Params, seed: int = 0) -> Params:
    """Makes weights from hashes of their positions, with the same bits on every platform.

    Scales of norms are 1, biases 0, and quantized kernels as wide as others. Arrays are made one by
    one and in place, so the peak of the memory is the size of the weights.

    Args:
      abstract: shapes, dtypes and shardings.
    """
    leaves, tree = jax.tree.flatten_with_path(abstract)
    made = []
    for number, (path, leaf) in enumerate(leaves):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        make = jax.jit(
            functools.partial(_hashed, name, leaf.shape, leaf.dtype), out_shardings=leaf.sharding
        )
        made.append(make(jnp.uint32(seed * 1000 + number)))
    return jax.tree.unflatten(tree, made)


def _hashed(name: str, shape: tuple[int, ...], dtype: Any, salt: jax.Array) -> jax.Array:
    if name.endswith(SCALE):
        return jnp.full(shape, _SCALE / _QUANTIZED, dtype)
    if "scale" in name or "norm" in name:
        return jnp.ones(shape, dtype)
    if "bias" in name:
        return jnp.zeros(shape, dtype)
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride & 0xFFFFFFFF)
        stride *= shape[axis]
    bits = place * jnp.uint32(_GOLDEN) + salt * jnp.uint32(_SILVER)
    bits = (bits ^ (bits >> 16)) * jnp.uint32(_SILVER)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    bits ^= bits >> 16
    # A product with a power of two is exact, so fusing it with the sum changes no bit.
    unit = (bits >> 9).astype(jnp.float32) * jnp.float32(2.0**-22) - 1
    return (unit * jnp.float32(_QUANTIZED if dtype.itemsize == 1 else _SCALE)).astype(dtype)
