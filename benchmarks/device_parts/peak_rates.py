"""Peak rates of this process's device: its maker's, or those that simple programs reach."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_sync.plan.chips import CHIPS

CHIP_NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA L4": "l4",
    "Tesla T4": "t4",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}
"""Keys of `CHIPS` by JAX's name of a device. Cards of other rates, as H100 PCIe, are left out."""

_COPIED_BYTES = {"cpu": 1 << 28}
_MANY_BYTES = 1 << 30


class PeakRates(NamedTuple):
    """Rates that shares refer to.

    Attributes:
      flops: dense floating-point operations a second in 16 bits; see `Chip.half`.
      bandwidth: bytes a second from and to the device's memory.
      source: `peak of NAME`, or `measured`.
    """

    flops: float
    bandwidth: float
    source: str


@functools.cache
def peak_rates() -> PeakRates:
    """Returns the rates of this process's first device; measures them if its kind is unknown."""
    name = CHIP_NAMES.get(jax.local_devices()[0].device_kind)
    if name is not None:
        return PeakRates(CHIPS[name].flops, CHIPS[name].bandwidth, f"{name}'s peak")
    size = 1024 if jax.default_backend() == "cpu" else 8192
    return PeakRates(product_flops_per_sec(size), copied_bytes_per_sec(), "a measured rate")


def copied_bytes_per_sec() -> float:
    """Measures the bytes a second that adding one to a large array reads and writes."""
    count = _COPIED_BYTES.get(jax.default_backend(), _MANY_BYTES) // 4
    x = jnp.ones(count, jnp.float32)
    add = jax.jit(lambda x: x + 1)
    return 2 * 4 * count / min(seconds(lambda: add(x), rounds=5))


def product_flops_per_sec(size: int) -> float:
    """Measures the operations a second of a product of two square bfloat16 matrices."""
    x = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    multiply = jax.jit(lambda x: x @ x)
    return 2 * size**3 / min(seconds(lambda: multiply(x), rounds=5))


def seconds(run: Callable[[], Any], rounds: int) -> list[float]:
    """Measures calls, after one that compiles; each waits for its results."""
    jax.block_until_ready(run())
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - started)
    return found
