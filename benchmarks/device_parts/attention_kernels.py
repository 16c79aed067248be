"""Attention of one layer: each way beside a reference in float32, and all timed in turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from device_parts.finding import CheckFailedError, Finding, PartOptions, median
from device_parts.memory_peak import memory_limit
from device_parts.model_shape import shape_directory
from rl_sync.models.attention import AttentionLayer, Context, attend
from rl_sync.models.blocks import QKV
from rl_sync.models.config import AttentionPath, ModelConfig
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.kernels import flash
from rl_sync.models.layers import Rotation
from rl_sync.models.platform import platform

PLAIN = "einsum"
_KERNELS: dict[str, tuple[str, ...]] = {"gpu": ("cudnn", "triton"), "tpu": ("splash",)}
_INTERPRETED = ("splash", "triton")
_ROUNDS = 5
_TOLERATED = 4.0
"""A way may be this many times as far from the reference as `einsum` in bfloat16."""


class Shape(NamedTuple):
    """Rows of a call.

    Attributes:
      model: a directory of `benchmarks/shapes/`.
      rows, tokens: number of rows, and tokens of each.
      packed: whether each row has two sequences.
    """

    model: str
    rows: int
    tokens: int
    packed: bool

    def __str__(self) -> str:
        packed = ", two sequences a row" if self.packed else ""
        return f"{self.model}, {self.rows} x {self.tokens:,}{packed}"


SMALL, LARGE = "qwen2.5-0.5b", "qwen2.5-7b"
_SHAPES = (
    Shape(SMALL, 16, 1024, False),
    Shape(SMALL, 16, 1024, True),
    Shape(LARGE, 8, 1024, False),
    Shape(LARGE, 2, 4096, False),
    Shape(LARGE, 2, 4096, True),
)
_SMALL_SHAPES = (Shape(SMALL, 1, 256, False), Shape(SMALL, 1, 256, True))

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def compare(options: PartOptions) -> Iterator[Finding]:
    """Compares all ways to attend that this platform has.

    Raises:
      CheckFailedError: a way is too far from the reference.
    """
    wrong = []
    for shape in _SMALL_SHAPES if options.small else _SHAPES:
        config = dataclasses.replace(
            load_config(Path(shape_directory(shape.model, options.small))), dtype="bfloat16"
        )
        inputs = _inputs(config, shape)
        with jax.default_matmul_precision("highest"):
            wide = [x.astype(jnp.float32) for x in inputs]
            exact = _results(_way(config, "blocks", shape, "float32"))(*wide)
        runs, errors = {}, {}
        for name in _names(config, shape):
            try:
                run = jax.jit(_results(_way(config, name, shape, "bfloat16")))
                errors[name] = _error(jax.block_until_ready(run(*inputs)), exact)
            except Exception as error:  # Each way fails on its own.
                first = (str(error).splitlines() or [""])[0]
                yield Finding(f"{shape}: {name}", "left out", beside=first[:200])
                if not isinstance(error, ValueError):
                    wrong.append(f"{name} on {shape}: {type(error).__name__}")
                continue
            runs[name] = run
        secs = _in_turns(runs, inputs)
        for name, share in errors.items():
            times = median(secs[name])
            beside = f"error {share:.1e} of the values and gradients"
            if PLAIN in secs and name != PLAIN:
                beside += f", {median(secs[PLAIN]) / times:.2f} times as fast as {PLAIN}"
            yield Finding(f"{shape}: {name}", 1e3 * times, "ms", beside)
            if not share <= _TOLERATED * errors.get(PLAIN, 0.01):
                wrong.append(f"{name} on {shape}: error {share:.1e}")
    if wrong:
        raise CheckFailedError("; ".join(wrong))


def _names(config: ModelConfig, shape: Shape) -> list[str]:
    """Returns the ways to attend; `einsum` only if its scores fit."""
    scores = 4 * 4 * shape.rows * config.num_heads * shape.tokens**2
    kernels = _KERNELS.get(platform(), _INTERPRETED)
    return [PLAIN] * (scores < 0.5 * memory_limit()) + ["blocks", *kernels]


def _way(config: ModelConfig, name: str, shape: Shape, dtype: str) -> Attend:
    """Returns a function that attends in one way; kernels are interpreted on a CPU."""
    segments = None
    if shape.packed:
        half = jnp.arange(shape.tokens) >= shape.tokens // 2
        segments = jnp.broadcast_to(half.astype(jnp.int32), (shape.rows, shape.tokens))
    if platform() == "cpu" and name in _INTERPRETED:
        if name == "splash":
            return lambda queries, keys, values: flash.splash(
                QKV(queries * config.attention_scale, keys, values), segments, None, interpret=True
            )
        return lambda *given: flash.triton(
            QKV(*given), segments, config.attention_scale, interpret=True
        )
    chosen = dataclasses.replace(config, attention=cast(AttentionPath, name), dtype=dtype)
    layer = AttentionLayer(jnp.int32(0), jnp.int32(shape.tokens), jnp.bool_(False))
    nowhere = Rotation(jnp.zeros(0), jnp.zeros(0))
    positions = jnp.zeros((shape.rows, shape.tokens), jnp.int32)
    context = Context(positions, segments, None, nowhere, None)
    return lambda *given: attend(chosen, QKV(*given), layer, context)


def _inputs(config: ModelConfig, shape: Shape) -> list[jax.Array]:
    """Makes queries, keys, values, and a gradient of the result."""
    K, N, H = config.num_kv_heads, config.heads_per_kv, config.head_dim
    wide, narrow = (shape.rows, shape.tokens, K, N, H), (shape.rows, shape.tokens, K, H)
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = (wide, narrow, narrow, wide)
    return [
        jax.random.normal(key, size, jnp.bfloat16) for key, size in zip(keys, sizes, strict=True)
    ]


def _results(way: Attend) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns a function from inputs to the result and the gradients."""

    def run(
        queries: jax.Array, keys: jax.Array, values: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, ...]:
        mixed, backward = jax.vjp(way, queries, keys, values)
        return mixed, *backward(weights.astype(mixed.dtype))

    return run


def _error(found: tuple[jax.Array, ...], exact: tuple[jax.Array, ...]) -> float:
    """Returns the greatest root mean square error of an array, as a share of the exact one's."""
    shares = []
    for x, y in zip(found, exact, strict=True):
        expected = np.asarray(y, np.float32)
        wrong = np.asarray(x, np.float32) - expected
        shares.append(float(np.sqrt(np.mean(wrong**2) / np.mean(expected**2))))
    return max(shares)


def _in_turns(runs: dict[str, Any], inputs: list[jax.Array]) -> dict[str, list[float]]:
    """Times compiled functions in turns."""
    secs: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            jax.block_until_ready(run(*inputs))
            secs[name].append(time.perf_counter() - started)
    return secs
