"""The reference checkpoints, and the results of transformers with them; see their README."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.transformer import init_params
from rl_sync.types import Params

ROOT = Path(__file__).resolve().parents[2] / "data" / "models"
FAMILIES = ["qwen2", "qwen3", "qwen3_moe", "llama3", "mistral", "gemma3"]
WITH_VISION = ["gemma3_vision", "smolvlm"]


def values(family: str) -> dict[str, Any]:
    """Reads a checkpoint's config.json."""
    return json.loads((ROOT / family / "config.json").read_text())


def expected(family: str) -> dict[str, np.ndarray]:
    """Reads the results of transformers."""
    with np.load(ROOT / family / "expected.npz") as arrays:
        return dict(arrays)


def abstract(config: ModelConfig, dtype: Any = np.float32) -> Params:
    """Returns the parameters' shapes, on the first device."""
    shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype, sharding=here), shapes)


def load(directory: Path, vision: bool = False) -> tuple[ModelConfig, Params]:
    """Loads a checkpoint on the first device."""
    config = load_config(directory, vision)
    return config, load_params(directory, config, abstract(config))
