"""Which option of XLA's GPU compiler a process sets for its programs."""

import importlib.util

import pytest

from rl_sync.roles.assembly import gpu_flags

OPTION = "--xla_gpu_enable_triton_gemm=false"


@pytest.fixture
def gpu(monkeypatch):
    """Lets JAX's plugin for GPUs seem to be installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name == "jax_cuda13_plugin" or found(name)
    )


@pytest.mark.parametrize(
    ("dtype", "quantized", "before", "after"),
    [
        ("float32", False, {}, OPTION),
        ("bfloat16", False, {}, OPTION),
        ("float32", True, {}, OPTION),
        ("bfloat16", False, {"XLA_FLAGS": "--xla_a=1"}, f"--xla_a=1 {OPTION}"),
        # Products with kernels in 8 bits need Triton.
        ("bfloat16", True, {}, None),
        # What a user has chosen stays.
        (
            "float32",
            False,
            {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=true"},
            "--xla_gpu_enable_triton_gemm=true",
        ),
    ],
)
def test_products_are_left_to_cublas(gpu, dtype, quantized, before, after):
    environment = dict(before)
    gpu_flags.choose(dtype, quantized, environment)
    assert environment.get("XLA_FLAGS") == after


def test_nothing_is_set_without_a_plugin_for_gpus(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    environment = {}
    gpu_flags.choose("float32", False, environment)
    assert environment == {}
