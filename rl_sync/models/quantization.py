"""Quantized weights of explorers: kernels in 8 bits, with a scale for each output.

Kernels of attention, of MLPs and of experts are quantized; norms, biases, routers, embeddings and
the output projection stay. A quantized kernel is two parameters: its numbers, under its own name,
and their scales in float32, under the name with `_scale`.
"""

from __future__ import annotations

from typing import Any

import jax

from rl_sync.models.config import ModelConfig
from rl_sync.models.transformer import param_shapes
from rl_sync.types import Params

SCALE = "_scale"


def quantized(config: ModelConfig, params: Params) -> Params:
    """Quantizes a model's parameters; may be traced.

    The scale of an output is max |w| of its weights, divided by the maximum of the dtype.

    Args:
      config: config with `quantization`; the result has the tree of its `param_shapes`.
      params: parameters of the same model without quantization.
    """
    import qwix

    def convert(values: Params, shapes: Params) -> Params:
        found: Params = {}
        for name, value in values.items():
            if isinstance(value, dict):
                found[name] = convert(value, shapes[name])
                continue
            scale = shapes.get(name + SCALE)
            if scale is None:
                found[name] = value
                continue
            own = [axis for axis, size in enumerate(scale.shape) if size == value.shape[axis]]
            both = qwix.quantize(value.astype("float32"), config.quantization, channelwise_axes=own)
            found |= {name: both.qvalue, name + SCALE: both.scale}
        return found

    return convert(params, param_shapes(config))


def held_dtypes(abstract: Params, dtype: str) -> Params:
    """Returns the dtype of each parameter as an explorer holds it.

    Args:
      abstract: shapes and dtypes of parameters, quantized or not.
      dtype: dtype of parameters that are not quantized.
    """

    def of(path: jax.tree_util.KeyPath, x: Any) -> Any:
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return x.dtype if name.endswith(SCALE) or x.dtype != "float32" else dtype

    return jax.tree_util.tree_map_with_path(of, abstract)
