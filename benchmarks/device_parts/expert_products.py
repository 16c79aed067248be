"""Products of rows with the kernels of their experts: the library's kernel beside XLA's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from device_parts.finding import CheckFailedError, Finding, PartOptions, median
from device_parts.peak_rates import peak_rates, seconds
from rl_sync.models.mixture.products import grouped, has_kernel

_TOLERATED = 0.01


class _Shape(NamedTuple):
    """Rows, experts and their widths."""

    rows: int
    experts: int
    inputs: int
    outputs: int


_SHAPES = (_Shape(32768, 128, 2048, 768), _Shape(512, 128, 2048, 768))
"""A trainer's rows and an explorer's, at the size of Qwen3-30B-A3B."""
_SMALL_SHAPES = (_Shape(64, 4, 32, 16),)

Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def compare(options: PartOptions) -> Iterator[Finding]:
    """Compares the products, forward and with both gradients.

    Raises:
      CheckFailedError: a product is too far from that of float32.
    """
    ways: dict[str, Product] = {"ragged_dot": jax.lax.ragged_dot}
    if has_kernel():
        ways["kernel"] = grouped
    wrong = []
    for shape in _SMALL_SHAPES if options.small else _SHAPES:
        given = _inputs(shape)
        exact = _exact(*given)
        flops = 3 * 2 * shape.rows * shape.inputs * shape.outputs
        for name, way in ways.items():
            run = jax.jit(_both_ways(way))
            sizes = f"{shape.rows:,} rows, {shape.experts} experts: {name}"
            error = _error(np.asarray(jax.jit(way)(*given[:3]), np.float32), exact)
            secs = median(seconds(functools.partial(run, *given), rounds=5))
            share = 100 * flops / peak_rates().flops / secs
            beside = f"error {error:.1e}; {share:.0f} % of the peak, forward and backward"
            yield Finding(sizes, 1e3 * secs, "ms", beside)
            if not error < _TOLERATED:
                wrong.append(f"{sizes}: error {error:.1e}")
    if not has_kernel():
        yield Finding("kernel", "left out", beside="pip install 'rl_sync[experts]' has it")
    if wrong:
        raise CheckFailedError("; ".join(wrong))


def _inputs(shape: _Shape) -> tuple[jax.Array, ...]:
    """Makes rows, kernels, uneven sizes of the groups, and a gradient of the result."""
    keys = jax.random.split(jax.random.key(0), 3)
    rows = jax.random.normal(keys[0], (shape.rows, shape.inputs), jnp.bfloat16)
    kernels = jax.random.normal(keys[1], (shape.experts, shape.inputs, shape.outputs), jnp.bfloat16)
    shares = np.random.default_rng(0).dirichlet(np.ones(shape.experts))
    sizes = np.random.default_rng(1).multinomial(shape.rows, shares).astype(np.int32)
    by_result = jax.random.normal(keys[2], (shape.rows, shape.outputs), jnp.bfloat16)
    return rows, kernels, jnp.asarray(sizes), by_result


def _both_ways(way: Product) -> Callable[..., tuple[jax.Array, ...]]:
    def run(
        rows: jax.Array, kernels: jax.Array, sizes: jax.Array, by_result: jax.Array
    ) -> tuple[jax.Array, ...]:
        product, backward = jax.vjp(lambda x, y: way(x, y, sizes), rows, kernels)
        return product, *backward(by_result.astype(product.dtype))

    return run


def _exact(
    rows: jax.Array, kernels: jax.Array, sizes: jax.Array, by_result: jax.Array
) -> np.ndarray:
    """Multiplies expert by expert in float32, on the host."""
    del by_result
    wide, weights = np.asarray(rows, np.float32), np.asarray(kernels, np.float32)
    ends = np.cumsum(np.asarray(sizes))
    parts = np.split(wide, ends[:-1])
    return np.concatenate([part @ one for part, one in zip(parts, weights, strict=True)])


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    """Returns the root mean square error, as a share of the exact product's."""
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))
