"""Attention of one decode step: the kernel beside its definition in float32, and beside XLA's."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from device_parts.finding import CheckFailedError, Finding, PartOptions, median
from device_parts.model_shape import shape_directory
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.kernels.decode import HeldTokens, NewTokens, attend_new
from rl_sync.models.platform import platform

_ROUNDS = 5
_LAYERS = 4
_PAGE = 32
_TOLERATED = 4.0
"""The kernel may be this many times as far from float32 as XLA's operations in 16 bits."""

Step = Callable[[NewTokens, HeldTokens], tuple[jax.Array, HeldTokens]]


class Shape(NamedTuple):
    """A decode step.

    Attributes:
      model: a directory of `benchmarks/shapes/`.
      rows, slots: number of rows, and slots of each.
      paged: whether the cache is in pages, in an order of their own.
      window: number of newest tokens that are attended to; 0 for all.
    """

    model: str
    rows: int
    slots: int
    paged: bool = False
    window: int = 0

    def __str__(self) -> str:
        paged = ", pages" if self.paged else ""
        window = f", a window of {self.window}" if self.window else ""
        return f"{self.model}, {self.rows} x {self.slots:,}{paged}{window}"


SMALL, LARGE = "qwen2.5-0.5b", "qwen2.5-7b"
_SHAPES = (
    Shape(SMALL, 64, 1024),
    Shape(SMALL, 64, 1024, paged=True),
    Shape(SMALL, 64, 1024, window=100),
    Shape(LARGE, 32, 1024),
    Shape(LARGE, 128, 1024, paged=True),
    Shape(LARGE, 2, 8192),
)
_SMALL_SHAPES = (Shape(SMALL, 2, 128), Shape(SMALL, 2, 128, paged=True, window=40))


def compare(options: PartOptions) -> Iterator[Finding]:
    """Compares the kernel with the definition of attention; on a CPU it is interpreted.

    Raises:
      CheckFailedError: it is too far from it, or another token of the cache has changed.
    """
    wrong = []
    for shape in _SMALL_SHAPES if options.small else _SHAPES:
        new, held, scale = _inputs(shape, options.small)
        kernel = functools.partial(attend_new, scale=scale, interpret=platform() != "gpu")
        plain = functools.partial(by_definition, scale=scale)
        wide = [jax.tree.map(_widened, given) for given in (new, held)]
        with jax.default_matmul_precision("highest"):
            exact = jax.block_until_ready(jax.jit(plain)(*wide))
        errors, secs = {}, {}
        for name, step in {"kernel": kernel, "XLA": plain}.items():
            run = jax.jit(step, donate_argnums=1)
            secs[name], result = _timed(run, new, held)
            errors[name] = _error(result, exact)
        read = 2 * shape.rows * held.keys.shape[2] * held.keys.shape[4] * held.keys.dtype.itemsize
        read *= min(shape.slots, shape.window or shape.slots)
        rate = read / secs["kernel"] / 1e9
        beside = f"{rate:,.0f} GB/s of one layer's cache, launch included; error"
        beside += f" {errors['kernel']:.1e}, XLA's {errors['XLA']:.1e};"
        beside += f" {secs['XLA'] / secs['kernel']:.2f} times as fast as XLA's operations"
        yield Finding(f"{shape}", 1e6 * secs["kernel"], "us", beside)
        if not errors["kernel"] <= _TOLERATED * errors["XLA"]:
            wrong.append(f"{shape}: error {errors['kernel']:.1e}")
    if wrong:
        raise CheckFailedError("; ".join(wrong))


def by_definition(
    new: NewTokens, held: HeldTokens, *, scale: float
) -> tuple[jax.Array, HeldTokens]:
    """Computes what `attend_new` does by plain operations, in the dtype of its inputs."""
    first, second = jnp.split(new.heads[:, :, :-1].astype(jnp.float32), 2, axis=-1)
    cos, sin = (x[:, None, None].astype(jnp.float32) for x in (new.cos, new.sin))
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    turned = turned.astype(new.heads.dtype)
    fresh = turned[:, :, -1], new.heads[:, :, -1]
    row, slot = jnp.arange(len(new.positions)), new.positions
    if held.table is not None:
        row, slot = held.table[row, slot // _PAGE], slot % _PAGE
    keys, values = (
        x.at[new.layer, row, :, slot].set(one)
        for x, one in zip((held.keys, held.values), fresh, strict=True)
    )
    held = held._replace(keys=keys, values=values)
    own = [x[new.layer] for x in (keys, values)]
    if held.table is not None:  # [B, Z, K, C, H] -> [B, K, Z * C, H]
        own = [x[held.table].swapaxes(1, 2) for x in own]
        own = [x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in own]
    scores = jnp.einsum("bknh,bksh->bkns", turned[:, :, :-1], own[0]).astype(jnp.float32)
    age = new.positions[:, None] - jnp.arange(own[0].shape[2])
    seen = (age >= 0) & (age < new.window)
    scores = jnp.where(seen[:, None, None], scale * scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(new.heads.dtype)
    return jnp.einsum("bkns,bksh->bknh", weights, own[1]), held


def _widened(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _inputs(shape: Shape, small: bool) -> tuple[NewTokens, HeldTokens, float]:
    """Draws new tokens at the ends of rows, which differ a little, and what is held."""
    config = load_config(Path(shape_directory(shape.model, small)))
    K, N, H = config.num_kv_heads, config.heads_per_kv, config.head_dim
    draws = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), 3)
    heads = jax.random.normal(keys[0], (shape.rows, K, N + 2, H), jnp.bfloat16)
    angles = draws.uniform(0, 6, (shape.rows, H // 2)).astype(np.float32)
    positions = shape.slots - 1 - draws.integers(0, shape.slots // 8, shape.rows)
    size, table = (_LAYERS, shape.rows, K, shape.slots, H), None
    if shape.paged:
        count = shape.rows * shape.slots // _PAGE
        table = jnp.asarray(draws.permutation(count).reshape(shape.rows, -1), jnp.int32)
        size = (_LAYERS, count, K, _PAGE, H)
    new = NewTokens(
        heads,
        jnp.cos(angles),
        jnp.sin(angles),
        jnp.asarray(positions, jnp.int32),
        jnp.int32(1),
        jnp.int32(shape.window or shape.slots),
    )
    drawn = [jax.random.normal(key, size, jnp.bfloat16) for key in keys[1:]]
    held = HeldTokens(drawn[0], drawn[1], table)
    return new, held, H**-0.5


def _timed(
    run: Step, new: NewTokens, held: HeldTokens
) -> tuple[float, tuple[jax.Array, HeldTokens]]:
    """Returns the median seconds of a call, and the result of the first."""
    secs = []
    first = None
    own = jax.tree.map(jnp.copy, held)  # Each call takes the memory of the one before.
    for _ in range(1 + _ROUNDS):
        jax.block_until_ready(own)
        started = time.perf_counter()
        mixed, own = run(new, own)
        jax.block_until_ready(mixed)
        secs.append(time.perf_counter() - started)
        if first is None:
            first = mixed, jax.tree.map(jnp.copy, own)
    assert first is not None
    return median(secs[1:]), first


def _error(found: tuple[jax.Array, HeldTokens], exact: tuple[jax.Array, HeldTokens]) -> float:
    """Returns the greatest root mean square error: of what is attended, and of the cache."""
    shares = []
    for x, y in zip((found[0], *found[1][:2]), (exact[0], *exact[1][:2]), strict=True):
        expected = np.asarray(y, np.float32)
        wrong = np.asarray(x, np.float32) - expected
        shares.append(float(np.sqrt(np.mean(wrong**2) / np.mean(expected**2))))
    return max(shares)
