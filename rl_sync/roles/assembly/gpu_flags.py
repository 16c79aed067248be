"""Prepares JAX for this machine's GPUs, before it starts its backend."""

from __future__ import annotations

from collections.abc import MutableMapping

from rl_sync.cluster.gpus import has_plugin, machine_gpus

_FLAGS = "XLA_FLAGS"
_TRITON = "xla_gpu_enable_triton_gemm"


def leaves_to_cublas(dtype: str, quantized: bool) -> bool:
    """Says whether `choose` leaves the products of a role to cuBLAS."""
    return not quantized or dtype == "float32"


def compiler_options(dtype: str, quantized: bool) -> dict[str, bool]:
    """Returns the same choice as compiler options of one program."""
    return {_TRITON: False} if leaves_to_cublas(dtype, quantized) else {}


def choose(dtype: str, quantized: bool, environment: MutableMapping[str, str]) -> None:
    """Leaves matrix products to cuBLAS on GPUs; call it before JAX starts its backend.

    Where this machine's GPUs cannot be used, JAX fails from now on: it would compute on the CPU.

    Without cuBLAS XLA also writes a Triton kernel for a product in dozens of ways, compiles each,
    and measures all. In float32 each takes seconds of all cores: on an H200's machine with 16 cores
    the programs of a model of 0.4 million parameters were not compiled within 200 s, and without
    Triton within 30 s. Programs in bfloat16 were as fast without it, or faster
    (docs/accelerators.md). Kernels in 8 bits are an exception: cuBLAS has no product of them with
    rows in 16 bits, and needs a copy of each kernel in 16 bits at every step.

    Args:
      dtype: dtype of explorers' activations.
      quantized: whether explorers' kernels are in 8 bits.
      environment: environment variables, which get the option unless they already have it. A
        choice of `JAX_PLATFORMS` stays.
    """
    if machine_gpus(environment).usable and "JAX_PLATFORMS" not in environment:
        import jax  # Late: the master needs no JAX.

        jax.config.update("jax_platforms", "cuda,cpu")
    given = environment.get(_FLAGS, "")
    if leaves_to_cublas(dtype, quantized) and has_plugin() and _TRITON not in given:
        environment[_FLAGS] = f"{given} --{_TRITON}=false".strip()
