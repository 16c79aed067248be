"""Converts between config.json and `ModelConfig`.

It reads config.json as transformers 4 writes it (`rope_theta`, `rope_scaling`, `torch_dtype`) and
as transformers 5 does (`rope_parameters`, `dtype`). It writes the form of transformers 4, which
both read. A config.json that asks for something our transformer does not support is rejected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_sync.models.config import Activation, Experts, ModelConfig, RopeScaling
from rl_sync.models.huggingface.families import FAMILIES, Family, Values
from rl_sync.models.huggingface.vision_families import (
    VISION_FAMILIES,
    vision_config,
    with_vision,
)
from rl_sync.spelling import require_one_of

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings", "sliding_window", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window_pattern",
)  # fmt: skip
_NUMBERS = (
    "rms_norm_eps", "rope_theta", "rope_local_base_freq", "query_pre_attn_scalar",
    "max_window_layers",
)  # fmt: skip
_LM, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
_FULL, _SLIDING = "full_attention", "sliding_attention"
# Values that these keys may have, if they are given.
_ONLY: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
}
# Keys outside of text_config that describe the language model of a vision-language model.
_OUTER = ("torch_dtype", "dtype", "quantization_config")
_LLAMA3 = {
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_length",
}
_ROPE_KEYS = {"rope_theta", "rope_type", "type", "factor", "partial_rotary_factor", *_LLAMA3}
# Fields that we choose: they change how the model is computed, but not its function.
_OURS = ("dtype", "remat", "attention", "lora")


def text_values(values: Values) -> Values:
    """Returns the language model's part of a config.json, which may also describe vision.

    Raises:
      ValueError: the model is of another family, or its text_config is not an object.
    """
    family = VISION_FAMILIES.get(str(values.get("model_type")))
    if family and "text_config" in values:
        inner = values["text_config"]
        if not isinstance(inner, Mapping):
            raise _refusal("text_config", inner, "an object {…}")
        if inner.get("model_type", family.text) != family.text:
            raise _refusal("text_config.model_type", inner["model_type"], family.text)
        outer = {key: values[key] for key in _OUTER if key in values}
        # As in transformers: the outer config of a vision-language model, not text_config, decides
        # whether embeddings are tied.
        tied = values.get("tie_word_embeddings", family.defaults["tie_word_embeddings"])
        return {**outer, **inner, "tie_word_embeddings": tied, "model_type": family.text}
    require_one_of("model_type", values.get("model_type"), (*FAMILIES, *VISION_FAMILIES))
    return values


def model_config(values: Values, vision: bool = False) -> ModelConfig:
    """Returns the model that a config.json describes; `max_length` is its max_position_embeddings.

    Args:
      vision: whether the model includes its vision, if it has any.

    Raises:
      ValueError: a key is missing, or asks for something our transformer does not support.
    """
    seen = vision_config(values, _refusal) if vision else None
    values = text_values(values)
    name = values["model_type"]
    family = FAMILIES[name]
    values = {**family.defaults, **values}
    for key, allowed in _ONLY.items():
        if key in values and values[key] not in allowed:
            raise _refusal(key, values[key], f"{allowed[0]!r}")
    _check_kinds(values)
    # Some configs have the key of another family, which transformers ignores.
    activation = "hidden_activation" if "hidden_activation" in family.defaults else "hidden_act"
    if str(values[activation]) not in _ACTIVATIONS:
        raise _refusal(activation, values[activation], " or ".join(_ACTIVATIONS))
    heads = _required(values, "num_attention_heads")
    fields = {
        "vocab_size": _required(values, "vocab_size"),
        "embed_dim": _required(values, "hidden_size"),
        "num_layers": _required(values, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": values.get("num_key_value_heads") or heads,
        "head_dim": values.get("head_dim") or _required(values, "hidden_size") // heads,
        "mlp_dim": _required(values, "intermediate_size"),
        "max_length": _required(values, "max_position_embeddings"),
        "norm_eps": values["rms_norm_eps"],
        "tie_embeddings": values["tie_word_embeddings"],
        "activation": _ACTIVATIONS[values[activation]],
        "scalar_head": _has_scalar_head(values),
        "vision": seen,
        **family.traits,
        **_rope(values),
        **_sliding(family, values),
    }
    if name == "gemma3_text":
        fields["query_scale"] = values["query_pre_attn_scalar"] ** -0.5
    if name == "qwen3_moe":
        fields["experts"] = _experts(values)
    return ModelConfig(**fields)


def _experts(values: Values) -> Experts:
    return Experts(
        values.get("num_local_experts") or values["num_experts"],
        values["num_experts_per_tok"],
        values["moe_intermediate_size"],
        values["norm_topk_prob"],
    )


def config_values(config: ModelConfig, torch_dtype: str) -> dict[str, Any]:
    """Returns a config.json from which transformers builds this model.

    Args:
      torch_dtype: dtype of the stored parameters.

      Raises:
        ValueError: no family has all traits of the model; the message lists those that the nearest
          family lacks.
    """
    wanted = config
    if not any(config.sliding_layers):
        wanted = dataclasses.replace(config, sliding_layers=(), sliding_window=0)
    nearest: tuple[str, list[str]] | None = None
    for name, family in FAMILIES.items():
        if family.divides and config.embed_dim % config.num_heads:
            continue
        values = _written(name, wanted, torch_dtype)
        if bool(wanted.experts) != (name == "qwen3_moe"):
            continue
        if wanted.vision:
            values = with_vision(wanted.vision, values) or values
        read = model_config(values, vision=True)
        if not wanted.sliding_layers:
            read = dataclasses.replace(read, local_rope_base=wanted.local_rope_base)
        differing = _differing(wanted, read)
        if not differing:
            return values
        if nearest is None or len(differing) < len(nearest[1]):
            nearest = (name, differing)
    but = f"; {nearest[0]} is nearest, but for {', '.join(nearest[1])}" if nearest else ""
    raise ValueError(
        "transformers has no such model among "
        f"{', '.join(FAMILIES)}{but}. A model with these traits can only be used here."
    )


def _has_scalar_head(values: Values) -> bool:
    """True if the model gives each sequence one score, as reward models do."""
    if not any(str(name).endswith(_CLASSIFIER) for name in values.get("architectures") or ()):
        return False
    labels = values.get("id2label") or {}
    count = values.get("num_labels") or len(labels) or 2  # As in transformers.
    if count != 1:
        raise _refusal("num_labels", count, "1")
    return True


def _check_kinds(values: Values) -> None:
    """Rejects values of the wrong kind, such as a text or null in place of a number or a flag."""
    for key in ("tie_word_embeddings", "norm_topk_prob", "use_sliding_window"):
        if not isinstance(values.get(key, False), bool):
            raise _refusal(key, values[key], "true or false")
    for key in _COUNTS:
        value = values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise _refusal(key, value, "a whole number from 1")
    for key in _NUMBERS:
        if type(values.get(key, 1)) not in (int, float):
            raise _refusal(key, values[key], "a number")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(values.get(key) or {}, Mapping):
            raise _refusal(key, values[key], "an object {…}")
    if not isinstance(values.get("layer_types") or [], list):
        raise _refusal("layer_types", values["layer_types"], "a list")


def _required(values: Values, key: str) -> Any:
    if values.get(key) is None:
        raise ValueError(f"config.json lacks {key!r}.")
    return values[key]


def _refusal(key: str, value: object, known: str) -> ValueError:
    return ValueError(f"config.json asks for {key}={value!r}, but only {known} is supported.")


def _rope(values: Values) -> dict[str, Any]:
    """Returns the RoPE fields of `ModelConfig`."""
    given = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    if values["model_type"] != "gemma3_text":
        theta = {"rope_theta": values["rope_theta"]}
        return _frequencies({**theta, **(scaling or given)}, values, "rope_scaling")
    everywhere = {"rope_theta": values["rope_theta"], **scaling, **(given.get(_FULL) or {})}
    local = {"rope_theta": values["rope_local_base_freq"], **(given.get(_SLIDING) or {})}
    slow = _frequencies(local, values, f"rope_parameters.{_SLIDING}")
    if "rope_scaling" in slow:
        raise _refusal(f"rope_parameters.{_SLIDING}", local, "rope_type='default'")
    return {
        **_frequencies(everywhere, values, f"rope_parameters.{_FULL}"),
        "local_rope_base": slow["rope_base"],
    }


def _frequencies(rope: Values, values: Values, path: str) -> dict[str, Any]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise _refusal(f"{path}.rope_type", kind, "default, linear or llama3")
    for key, value in rope.items():
        if key not in _ROPE_KEYS:
            raise _refusal(f"{path}.{key}", value, f"{', '.join(sorted(_ROPE_KEYS))}")
    for key in ("rope_theta", "factor", *_LLAMA3):
        if type(rope.get(key, 1)) not in (int, float):
            raise _refusal(f"{path}.{key}", rope[key], "a number")
    if rope.get("partial_rotary_factor", 1) not in (1, None):
        raise _refusal(f"{path}.partial_rotary_factor", rope["partial_rotary_factor"], "1")
    fields: dict[str, Any] = {"rope_base": float(rope["rope_theta"])}
    if kind == "linear":
        fields["rope_scaling"] = RopeScaling("linear", float(_required(rope, "factor")))
    elif kind == "llama3":
        longest = {"original_max_position_embeddings": values["max_position_embeddings"]}
        stretch = {ours: _required({**longest, **rope}, key) for key, ours in _LLAMA3.items()}
        fields["rope_scaling"] = RopeScaling("llama3", float(_required(rope, "factor")), **stretch)
    return fields


def _sliding(family: Family, values: Values) -> dict[str, Any]:
    """Returns the sliding layers and their window, as fields of `ModelConfig`."""
    layers, window = _required(values, "num_hidden_layers"), values.get("sliding_window")
    switched = "use_sliding_window" in family.defaults
    if family.slides == "never" or (switched and not values["use_sliding_window"]):
        window = None
    kinds = values.get("layer_types")
    unknown = [kind for kind in kinds or () if kind not in (_FULL, _SLIDING)]
    if unknown:
        raise _refusal("layer_types", unknown[0], f"{_FULL} and {_SLIDING}")
    if kinds and family.slides in ("late", "pattern"):
        slides = tuple(kind == _SLIDING for kind in kinds)
    elif family.slides == "pattern":
        every = values["sliding_window_pattern"]
        slides = tuple((layer + 1) % every != 0 for layer in range(layers))
    else:
        first = values["max_window_layers"] if family.slides == "late" else 0
        slides = tuple(window is not None and layer >= first for layer in range(layers))
    if not any(slides):
        return {}
    if window is None:
        raise _refusal("layer_types", _SLIDING, f"{_FULL} without a sliding_window in use")
    return {"sliding_layers": slides, "sliding_window": window}


def _written(name: str, config: ModelConfig, torch_dtype: str) -> dict[str, Any]:
    """Returns the config.json of a family, even if it cannot express all traits of the model."""
    family = FAMILIES[name]
    activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    gemma = name == "gemma3_text"
    values: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": name,
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_activation" if gemma else "hidden_act": activations[config.activation],
        "rope_theta": config.rope_base,
        "rope_scaling": _written_scaling(config.rope_scaling),
        "attention_bias": False,
        "torch_dtype": torch_dtype,
    }
    slides = any(config.sliding_layers)
    flags = config.sliding_layers or (False,) * config.num_layers
    if family.slides != "never":
        values["sliding_window"] = config.sliding_window if slides else None
    if "use_sliding_window" in family.defaults:
        values["use_sliding_window"] = slides
    if family.slides in ("late", "pattern"):
        values["layer_types"] = [_SLIDING if slide else _FULL for slide in flags]
    if family.slides == "late":
        values["max_window_layers"] = flags.index(True) if slides else config.num_layers
    if gemma:
        values["rope_local_base_freq"] = config.local_rope_base or config.rope_base
        values["query_pre_attn_scalar"] = round(config.attention_scale**-2)
        # transformers makes the mask of sliding layers even if there are none.
        values["sliding_window"] = config.sliding_window if slides else config.max_length
        values |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    if config.scalar_head:
        values |= classifier_values(values)
    if config.experts:
        values |= _written_experts(config.experts)
    return values


def _written_experts(experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.mlp_dim,
        "norm_topk_prob": experts.normalize,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def classifier_values(values: Values) -> dict[str, Any]:
    """Returns the changes to a language model's config.json that give it a scalar head."""
    names = [str(name).replace(_LM, _CLASSIFIER) for name in values["architectures"]]
    return {"architectures": names, "id2label": {"0": "score"}, "label2id": {"score": 0}}


def _written_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    values = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values |= {theirs: getattr(scaling, ours) for theirs, ours in _LLAMA3.items()}
    return values


def _differing(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Lists the fields of `one` that define the model and differ in `other`."""
    names = [field.name for field in dataclasses.fields(ModelConfig) if field.name not in _OURS]
    if one.attention_scale == other.attention_scale:
        names.remove("query_scale")
    return [
        f"{name}={getattr(one, name)!r}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]
