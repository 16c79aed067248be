"""Which products of experts go to the kernel of GPUs."""

import jax.numpy as jnp
import pytest

from rl_sync.models.mixture import products


@pytest.mark.parametrize(
    ("device", "dtype", "width", "hidden", "goes"),
    [
        ("gpu", jnp.bfloat16, 32, 24, True),
        ("gpu", jnp.float16, 8, 8, True),
        # A GPU copies lines of 16 bytes: 8 numbers of 16 bits.
        ("gpu", jnp.bfloat16, 32, 12, False),
        ("gpu", jnp.bfloat16, 20, 24, False),
        ("gpu", jnp.float32, 32, 24, False),
        ("tpu", jnp.bfloat16, 32, 24, False),
        ("cpu", jnp.bfloat16, 32, 24, False),
    ],
)
def test_the_kernel_gets_the_dtypes_and_widths_that_it_takes(
    monkeypatch, device, dtype, width, hidden, goes
):
    called = []
    monkeypatch.setattr(products, "platform", lambda: device)
    monkeypatch.setattr(products, "has_kernel", lambda: True)
    monkeypatch.setattr(
        products,
        "_grouped_by_kernel",
        lambda rows, kernels, sizes: called.append(1) or jnp.zeros((5, hidden), dtype),
    )
    rows, kernels = jnp.ones((5, width), dtype), jnp.ones((2, width, hidden), dtype)
    given = products.grouped(rows, kernels, jnp.array([2, 3], jnp.int32))
    assert bool(called) == goes
    if not goes:
        assert (given == width).all()
