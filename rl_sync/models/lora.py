"""Splits LoRA adapters from the base parameters, joins them again, or merges them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.models.config import HEAD, LoraTarget, ModelConfig
from rl_sync.types import Params

_SUFFIX = "_lora"


def split(params: Params) -> tuple[Params, Params]:
    """Splits a model's parameters into (adapters, base).

    Adapters are the parameters under a name that ends in `_lora`, and a scalar head; base is the
    rest. Each is a dict nested like `params`, without empty branches.
    """
    adapters, base = {}, {}
    for name, value in params.items():
        if name.endswith(_SUFFIX) or name == HEAD:
            adapters[name] = value
        elif not isinstance(value, dict):
            base[name] = value
        else:
            for part, inner in zip((adapters, base), split(value), strict=True):
                if inner:
                    part[name] = inner
    return adapters, base


def join(adapters: Params, base: Params) -> Params:
    """Inverts `split`."""
    joined = {**base, **adapters}
    for name in adapters.keys() & base.keys():
        joined[name] = join(adapters[name], base[name])
    return joined


def merged_config(config: ModelConfig) -> ModelConfig:
    """Returns the config of the model that `merge` returns."""
    return dataclasses.replace(config, lora=None)


def merge(
    config: ModelConfig, params: Params, as_held: Callable[[Params], Params] = lambda params: params
) -> Params:
    """Adds (alpha / rank) · A·B to every adapted kernel (LoRA, arXiv:2106.09685, section 4.1).

    It computes in float32, one layer after another, as sums of all layers would need twice the
    memory of a policy in 16 bits.

    Args:
      config: a config with `lora`.
      params: parameters of all layers, adapters included; they are not changed.
      as_held: turns merged parameters, of one layer or of none, into the form of the result.

    Returns:
      Parameters without adapters, for `merged_config`. They compute the same function, except for
      rounding.
    """
    adapters, base = split(params)

    def merge_layer(layer: tuple[Params, Params]) -> Params:
        adapters, blocks = jax.tree.map(lambda x: x[None].astype("float32"), layer)
        for part, found in adapters.items():
            for name, adapter in found.items():
                _MERGES[name](config, blocks[part], adapter)
        return jax.tree.map(lambda x: x[0], as_held({"blocks": blocks})["blocks"])

    blocks = jax.lax.map(merge_layer, (adapters.pop("blocks"), base.pop("blocks")))
    rest = jax.tree.map(lambda x: x.astype("float32"), base | adapters)
    return as_held(rest) | {"blocks": blocks}


def _delta(
    config: ModelConfig, adapter: dict[str, Array], target: LoraTarget, abstract: Array
) -> Float[Array, ...]:
    """Computes the scaled product A·B of one target, or zeros if it has no adapter."""
    assert config.lora is not None
    if f"{target}_a" not in adapter:
        return jnp.zeros_like(abstract)
    down, up = adapter[f"{target}_a"], adapter[f"{target}_b"]
    layers, _, rank = down.shape
    product = jnp.einsum("LDR,LRF->LDF", down, up.reshape(layers, rank, -1))
    return (config.lora.scale * product).reshape(abstract.shape).astype(abstract.dtype)


def _merge_qkv(config: ModelConfig, kernels: dict[str, Array], adapter: dict[str, Array]) -> None:
    fused, queries = kernels["qkv"], config.heads_per_kv
    parts: dict[LoraTarget, slice] = {
        "q": slice(0, queries),
        "k": slice(queries, queries + 1),
        "v": slice(queries + 1, queries + 2),
    }
    deltas = [_delta(config, adapter, name, fused[..., at, :]) for name, at in parts.items()]
    kernels["qkv"] = fused + jnp.concatenate(deltas, axis=-2)


def _merge_out(config: ModelConfig, kernels: dict[str, Array], adapter: dict[str, Array]) -> None:
    kernels["out"] = kernels["out"] + _delta(config, adapter, "o", kernels["out"])


def _merge_gate_up(
    config: ModelConfig, kernels: dict[str, Array], adapter: dict[str, Array]
) -> None:
    fused = kernels["gate_up"]
    targets: tuple[LoraTarget, LoraTarget] = ("gate", "up")
    deltas = [_delta(config, adapter, name, fused[..., i, :]) for i, name in enumerate(targets)]
    kernels["gate_up"] = fused + jnp.stack(deltas, axis=-2)


def _merge_down(config: ModelConfig, kernels: dict[str, Array], adapter: dict[str, Array]) -> None:
    kernels["down"] = kernels["down"] + _delta(config, adapter, "down", kernels["down"])


_MERGES = {
    "qkv_lora": _merge_qkv,
    "out_lora": _merge_out,
    "gate_up_lora": _merge_gate_up,
    "down_lora": _merge_down,
}
