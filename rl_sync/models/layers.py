"""Parts of a block: norms, adapters, the gated MLP as Linen modules, and rotary positions.

Letters in shapes: B rows, T positions, D embed, F mlp, R rank of an adapter, H head dim.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rl_sync.models import invariant
from rl_sync.models.config import LoraTarget, ModelConfig, RopeScaling
from rl_sync.models.invariant import sharing
from rl_sync.models.sharding import laid_out
from rl_sync.models.shards import as_stored

_ATTENDING = ("splash_mqa_fwd", "dot_product_attention_fwd")
"""Names of kernels that attend, on TPUs and GPUs, as their operations have them."""


def _is_attention(operation: Any, *_: object, **params: object) -> bool:
    """Says whether an operation is a kernel that attends; its results are few, and dear."""
    # Versions of JAX name a kernel by different parameters of its call.
    names = (operation.name, params.get("name"), params.get("name_and_src_info"))
    return any(one in str(name) for name in names for one in _ATTENDING)


REMAT_POLICIES: dict[str, Any] = {
    "full": None,
    "attention": _is_attention,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
UNROLLED_LAYERS = 4
"""Most layers that a scan unrolls. A loop would copy all residuals of its backward pass twice."""

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def param(
    module: nn.Module,
    name: str,
    init: Initializer,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
) -> Array:
    """Creates a float32 parameter of a module, with its logical axis names."""
    return cast(Array, module.param(name, nn.with_logical_partitioning(init, axes), shape))


class ScaledKernel(NamedTuple):
    """A kernel of a quantized model.

    Attributes:
      numbers: the kernel in 8 bits.
      scale: factor of each output, with as many axes; 1 along the axes that a product sums over.
    """

    numbers: Float[Array, "*S"]
    scale: Float[Array, "*S"]


Kernel = Array | ScaledKernel


def kernel(
    module: nn.Module,
    config: ModelConfig,
    name: str,
    init: Initializer,
    *,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    inputs: tuple[int, ...] = (0,),
) -> Kernel:
    """Creates a kernel.

    Args:
      shape, axes: sizes and logical names of its axes.
      inputs: axes that a product sums over; all weights along them share one scale if the model is
        quantized.
    """
    if config.quantization is None:
        return param(module, name, init, shape, axes)
    zeros = functools.partial(initializers.zeros, dtype=config.quantization)
    held = param(module, name, cast(Initializer, zeros), shape, axes)
    sizes = tuple(1 if axis in inputs else size for axis, size in enumerate(shape))
    own = tuple(None if axis in inputs else name for axis, name in enumerate(axes))
    scale = param(module, f"{name}_scale", initializers.ones, sizes, own)
    return ScaledKernel(held, scale)


def whole(kernel: Kernel, dtype: DTypeLike) -> Array:
    """Returns a kernel in a dtype, in one array."""
    if isinstance(kernel, ScaledKernel):
        return kernel.numbers.astype(dtype) * kernel.scale.astype(dtype)
    return kernel.astype(dtype)


def fan_in(inputs: int, layers: int = 0) -> Initializer:
    """Returns an initializer: normal with variance 1/inputs.

    With `layers` the variance is divided by 2·layers, for kernels whose output is added to the
    residual stream (Language Models are Unsupervised Multitask Learners, section 2.3).
    """
    return initializers.normal(math.sqrt(1.0 / (inputs * (2 * layers if layers else 1))))


class RMSNorm(nn.Module):
    """y = (scale + offset) · x / √(mean(x²) + ε) over the last axis, computed in float32."""

    config: ModelConfig
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        offset = self.config.norm_offset
        start = initializers.constant(1.0 - offset)
        scale = param(self, "scale", start, (x.shape[-1],), (self.axis,))
        wide = x.astype(jnp.float32)
        square = jnp.square(wide)
        if self.config.batch_invariant:
            scale = scale.astype(x.dtype)  # As explorers get it.
            mean_square = invariant.total(square, sharing(x))[..., None] / x.shape[-1]
        else:
            mean_square = jnp.mean(square, axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.config.norm_eps)
        return (normed * (scale.astype(jnp.float32) + offset)).astype(x.dtype)


class Adapter(nn.Module):
    """(alpha / rank) · x·A·B for each adapted target among `targets`, 0 for the other targets.

    A is initialized at random and B at 0, so a new adapter changes nothing (LoRA, section 4.1).

    Attributes:
      targets: for each target, the shape of its outputs and their logical axes.
      inputs: number of trailing axes of x to sum over.
    """

    config: ModelConfig
    targets: dict[LoraTarget, tuple[tuple[int, ...], tuple[str | None, ...]]]
    inputs: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, ...]) -> dict[LoraTarget, Array]:
        lora = self.config.lora
        assert lora is not None
        rows = x.shape[: x.ndim - self.inputs]
        flat = x.reshape(*rows, -1)
        deltas: dict[LoraTarget, Array] = {}
        for target, (shape, axes) in self.targets.items():
            if target not in lora.targets:
                deltas[target] = jnp.zeros((*rows, *shape), x.dtype)
                continue
            width, outputs = flat.shape[-1], math.prod(shape)
            down = param(self, f"{target}_a", fan_in(width), (width, lora.rank), (None, None))
            up_shape, up_axes = (lora.rank, *shape), (None, *axes)
            up = param(self, f"{target}_b", initializers.zeros, up_shape, up_axes)
            low = multiplied(self.config, flat, down.astype(x.dtype))
            wide = multiplied(self.config, low, up.astype(x.dtype).reshape(lora.rank, outputs))
            deltas[target] = lora.scale * wide.reshape(*rows, *shape)
        return deltas


def multiplied(
    config: ModelConfig, x: Float[Array, "B T D"], matrix: Float[Array, "D F"]
) -> Float[Array, "B T F"]:
    """Multiplies each position by a matrix."""
    if not config.batch_invariant:
        return x @ matrix
    least = invariant.least_rows(matrix.shape[1])
    return invariant.by_many_rows(lambda x: x @ matrix, x, least, sharing(x))


def project(
    config: ModelConfig, x: Float[Array, "B T ..."], kernel: Kernel, inputs: int = 1
) -> Float[Array, "B T ..."]:
    """Multiplies x by a kernel; sums over the last `inputs` axes of x and the first of the kernel.

    The product is one of two matrices: with more axes XLA transposes whole activations on CPUs,
    mostly in the backward pass. On a mesh the axes are kept separate, since a sharded axis cannot
    be merged into another axis without gathering the kernel.

    Scales of a quantized kernel are factors of the product, in float32. So its numbers only change
    their dtype before the product, which XLA can do inside it, without an array of the kernel in
    16 bits.
    """
    if config.batch_invariant:
        plain, devices = dataclasses.replace(config, batch_invariant=False), sharing(x)
        function = functools.partial(project, plain, kernel=kernel, inputs=inputs)
        numbers = kernel.numbers if isinstance(kernel, ScaledKernel) else kernel
        least = invariant.least_rows(math.prod(numbers.shape[inputs:]))
        return invariant.by_many_rows(function, x, least, devices)
    if isinstance(kernel, ScaledKernel):
        product = _product(x, kernel.numbers, inputs, jnp.float32)
        return (product * kernel.scale.reshape(product.shape[2:])).astype(x.dtype)
    return _product(x, kernel, inputs)


def _product(
    x: Float[Array, "B T ..."],
    kernel: Float[Array, ...],
    inputs: int,
    dtype: DTypeLike | None = None,
) -> Float[Array, "B T ..."]:
    """Returns the product in a dtype, or in that of x."""
    if laid_out():
        whole = kernel.astype(x.dtype)
        return jnp.tensordot(x, whole, axes=inputs, preferred_element_type=dtype)
    outputs = kernel.shape[inputs:]
    size = math.prod(kernel.shape[:inputs])
    matrix = kernel.astype(x.dtype).reshape(size, -1)
    flat = jnp.matmul(x.reshape(-1, size), matrix, preferred_element_type=dtype)
    return flat.reshape(*x.shape[:2], *outputs)


@functools.partial(jax.checkpoint, static_argnums=0)
def _gated(activation: str, both: Float[Array, "B T 2 F"]) -> Float[Array, "B T F"]:
    """act(gate) · up, which the backward pass recomputes: that costs less than keeping it."""
    # The gradient of a split is one array. The gradient of two slices would be a sum of two arrays,
    # each half zeros.
    gate, up = jax.lax.split(both, (1, 1), axis=2)
    return (ACTIVATIONS[activation](gate) * up)[:, :, 0]


class GatedMLP(nn.Module):
    """down(act(gate(x)) · up(x)). Gate and up share one kernel (GLU Variants, arXiv:2002.05202).

    Attributes:
      decodes: whether a call is a step of a decode loop.
    """

    config: ModelConfig
    decodes: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        config = self.config
        D, F = config.embed_dim, config.mlp_dim
        axes = ("embed", None, "mlp")
        gate_up = kernel(self, config, "gate_up", fan_in(D), shape=(D, 2, F), axes=axes)
        start = fan_in(F, config.num_layers)
        down = kernel(self, config, "down", start, shape=(F, D), axes=("mlp", "embed"))
        if self.decodes and not isinstance(gate_up, ScaledKernel):
            # Otherwise XLA wants the kernels of all layers with the axis of gate and up in front,
            # and a loop of decode steps starts by copying them.
            gate_up = as_stored(gate_up, *axes)
        both = project(config, x, gate_up)
        if config.lora:
            targets: dict[LoraTarget, tuple[tuple[int, ...], tuple[str | None, ...]]]
            targets = {"gate": ((F,), ("mlp",)), "up": ((F,), ("mlp",))}
            deltas = Adapter(config, targets, name="gate_up_lora")(x)
            both = both + jnp.stack([deltas["gate"], deltas["up"]], axis=2)
        hidden = _gated(config.activation, both)
        out = project(config, hidden, down)
        if config.lora:
            out = (
                out
                + Adapter(config, {"down": ((D,), ("embed",))}, name="down_lora")(hidden)["down"]
            )
        return out


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles at the positions of a call.

    RoPE is the rotary position embedding (RoFormer, arXiv:2104.09864).
    """

    cos: Float[Array, "B T H/2"]
    sin: Float[Array, "B T H/2"]


def frequencies(
    head_dim: int, base: float, scaling: RopeScaling | None
) -> Float[np.ndarray, " H/2"]:
    """Computes θ^(−2i/H), i = 0 … H/2 − 1 (RoFormer, eq. 15), stretched as `scaling` says."""
    plain = base ** -(np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    turns = scaling.original_max_length * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / scaling.factor


def rotations(
    config: ModelConfig, positions: Int[Array, "B T"]
) -> tuple[Rotation, Rotation | None]:
    """Computes the rotations of ordinary layers, and of sliding layers if they differ."""
    everywhere = _rotation(
        frequencies(config.head_dim, config.rope_base, config.rope_scaling), positions
    )
    if config.local_rope_base is None:
        return everywhere, None
    local = frequencies(config.head_dim, config.local_rope_base, None)
    return everywhere, _rotation(local, positions)


def _rotation(by: Float[np.ndarray, " H/2"], positions: Int[Array, "B T"]) -> Rotation:
    angles = positions[..., None] * jnp.asarray(by, jnp.float32)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B T ... H"], by: Rotation) -> Float[Array, "B T ... H"]:
    """Rotates the pair (x_i, x_{i + H/2}) by the i-th angle of each position."""
    missing = tuple(range(2, x.ndim - 1))
    cos, sin = jnp.expand_dims(by.cos, missing), jnp.expand_dims(by.sin, missing)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
