"""Lists the model families of transformers that our transformer supports, and their differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]
"""Contents of a config.json."""


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type`.

    Attributes:
      meaning: the models of the family.
      architecture: name of the class in transformers.
      traits: properties that all its models share, as fields of `ModelConfig`.
      defaults: values that transformers uses for keys missing in config.json.
      slides: layers with a sliding window. `never`: none. `all`: all, if sliding_window is set.
        `late`: layers from max_window_layers on, if use_sliding_window is true. `pattern`: all but
        every n-th.
      divides: whether transformers requires hidden_size to be a multiple of the number of heads.
    """

    meaning: str
    architecture: str
    traits: Values
    defaults: Values
    slides: str = "never"
    divides: bool = False


_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
}
_QWEN = {
    **_COMMON,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_MOE = {
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
}
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
GEMMA_TRAITS: dict[str, Any] = {
    "norm_offset": 1.0, "post_norms": True, "scale_embedding": True, "qk_norm": True,
}  # fmt: skip
FAMILIES: dict[str, Family] = {
    "llama": Family(
        "Llama 3, and others of its architecture, such as SmolLM2.",
        "LlamaForCausalLM",
        {},
        {**_COMMON, "max_position_embeddings": 2048},
        divides=True,
    ),
    "mistral": Family(
        "Mistral.",
        "MistralForCausalLM",
        {},
        {
            **_COMMON,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        },
        slides="all",
    ),
    "qwen2": Family(
        "Qwen 2 and 2.5.", "Qwen2ForCausalLM", {"qkv_bias": True}, _QWEN, slides="late"
    ),
    "qwen3": Family(
        "Qwen 3, dense.",
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        {**_QWEN, "head_dim": 128},
        slides="late",
    ),
    "qwen3_moe": Family(
        "Qwen 3 with a mixture of experts.",
        "Qwen3MoeForCausalLM",
        {"qk_norm": True},
        {**_QWEN, **_MOE},
        slides="all",
    ),
    "gemma3_text": Family(
        "Gemma 3, only its language model.",
        "Gemma3ForCausalLM",
        GEMMA_TRAITS,
        _GEMMA,
        slides="pattern",
        divides=True,
    ),
}
