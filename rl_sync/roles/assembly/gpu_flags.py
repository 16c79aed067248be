"""Chooses an option of XLA's GPU compiler for a run's programs."""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

_FLAGS = "XLA_FLAGS"
_TRITON = "xla_gpu_enable_triton_gemm"
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def choose(dtype: str, quantized: bool, environment: MutableMapping[str, str]) -> None:
    """Leaves matrix products to cuBLAS on GPUs; call it before JAX starts its backend.

    Otherwise XLA also writes a Triton kernel for a product in dozens of ways, compiles each, and
    measures all. In float32 each takes seconds of all cores: on an H200's machine with 16 cores the
    programs of a model of 0.4 million parameters were not compiled within 200 s, and without Triton
    within 30 s. Programs in bfloat16 were as fast without it, or faster (docs/accelerators.md).
    Kernels in 8 bits are an exception: cuBLAS has no product of them with rows in 16 bits, and
    needs a copy of each kernel in 16 bits at every step.

    Args:
      dtype: dtype of explorers' activations.
      quantized: whether explorers' kernels are in 8 bits.
      environment: environment variables, which get the option unless they already have it.
    """
    if quantized and dtype != "float32":
        return
    given = environment.get(_FLAGS, "")
    if any(map(importlib.util.find_spec, _PLUGINS)) and _TRITON not in given:
        environment[_FLAGS] = f"{given} --{_TRITON}=false".strip()
