"""Converts between the vision part of a config.json and `Vision`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.models.huggingface.families import Values
from rl_sync.models.vision.vision_config import Connector, Vision

_TOWER_KEYS = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
}
# Values that these keys of vision_config may have, if they are given.
_ONLY = {"hidden_act": "gelu_pytorch_tanh", "num_channels": 3}
# SmolVLM numbers a tile's patches by their fractional positions. With these numbers of patches a
# side, rounding gives some patches the number of a neighbour (found with torch 2.13).
_UNEVEN = frozenset({19, 25, 29, 31, 38, 40, 41, 43, 47, 49, 50, 54, 55, 58, 59, 61, 62})
_MOST_PATCHES = 64
_BILINEAR = 2  # Number of the filter in Pillow.


@dataclasses.dataclass(frozen=True)
class VisionFamily:
    """One `model_type` of language models with vision.

    Attributes:
      meaning: the models of the family.
      architecture: name of the class in transformers.
      text: `model_type` of its language model.
      tower: `model_type` of its vision_config.
      connector, both_ways: traits of all its models; see `Vision`.
      image_token: key of the id of images' tokens.
      defaults: values that transformers uses for keys missing in config.json.
      tower_defaults: values that transformers uses for keys missing in vision_config.
      prefix, head, tower_prefix, projector_prefix: names of the tensors of a new checkpoint; see
        `rl_sync.models.huggingface.names.TensorNames`.
    """

    meaning: str
    architecture: str
    text: str
    tower: str
    connector: Connector
    both_ways: bool
    image_token: str
    defaults: Values
    tower_defaults: Values
    prefix: str
    head: str
    tower_prefix: str
    projector_prefix: str


_SIGLIP = {
    "image_size": 224,
    "patch_size": 16,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
}
_SMOL = VisionFamily(
    "SmolVLM 2, with vision.",
    "SmolVLMForConditionalGeneration",
    "llama",
    "smolvlm_vision",
    "shuffled",
    both_ways=False,
    image_token="image_token_id",
    defaults={"image_token_id": 128_257, "scale_factor": 2, "tie_word_embeddings": False},
    tower_defaults={
        **_SIGLIP,
        "patch_size": 32,
        "hidden_size": 1152,
        "num_attention_heads": 16,
    },
    prefix="model.text_model.",
    head="lm_head.weight",
    tower_prefix="model.vision_model.",
    projector_prefix="model.connector.",
)
VISION_FAMILIES: dict[str, VisionFamily] = {
    "gemma3": VisionFamily(
        "Gemma 3, with vision.",
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
        "siglip_vision_model",
        "pooled",
        both_ways=True,
        image_token="image_token_index",
        defaults={
            "image_token_index": 262_144,
            "mm_tokens_per_image": 256,
            "tie_word_embeddings": True,
        },
        tower_defaults=_SIGLIP,
        prefix="language_model.model.",
        head="language_model.lm_head.weight",
        tower_prefix="vision_tower.vision_model.",
        projector_prefix="multi_modal_projector.",
    ),
    "smolvlm": _SMOL,
    "idefics3": dataclasses.replace(
        _SMOL,
        meaning="Idefics 3 and the first SmolVLM, with vision.",
        architecture="Idefics3ForConditionalGeneration",
        tower="idefics3_vision",
    ),
}


Refusal = Callable[[str, object, str], ValueError]
"""Makes the error for a key, its value, and the values that are supported."""


def vision_config(values: Values, refusal: Refusal) -> Vision | None:
    """Returns the vision that a config.json describes; None if it describes a language model alone.

    Args:
      refusal: makes the error for a key that is not supported.

    Raises:
      ValueError: a key asks for something that our tower does not support.
    """
    family = VISION_FAMILIES.get(str(values.get("model_type")))
    if family is None or "vision_config" not in values:
        return None
    given = values["vision_config"]
    if not isinstance(given, Mapping):
        raise refusal("vision_config", given, "an object {…}")
    values = {**family.defaults, **_without_none(values)}
    tower = {**family.tower_defaults, **_without_none(given)}
    for key, allowed in _ONLY.items():
        if tower.get(key, allowed) != allowed:
            raise refusal(f"vision_config.{key}", tower[key], repr(allowed))
    for key in _TOWER_KEYS:
        if type(tower[key]) is not int or tower[key] < 1:
            raise refusal(f"vision_config.{key}", tower[key], "a whole number from 1")
    counted = ("mm_tokens_per_image", "scale_factor", family.image_token)
    # Transformers reads the id of images' tokens under either name.
    alias = "image_token_id" if "image_token_id" in values else family.image_token
    values = {**values, family.image_token: values[alias]}
    for key in counted:
        if key in values and (type(values[key]) is not int or values[key] < 1):
            raise refusal(key, values[key], "a whole number from 1")
    if type(tower["layer_norm_eps"]) not in (int, float):
        raise refusal("vision_config.layer_norm_eps", tower["layer_norm_eps"], "a number")
    sizes = {ours: tower[theirs] for theirs, ours in _TOWER_KEYS.items()}
    return Vision(
        **sizes,
        norm_eps=tower["layer_norm_eps"],
        tile_tokens=_tile_tokens(family, values, tower, refusal),
        connector=family.connector,
        both_ways=family.both_ways,
        token_id=values[family.image_token],
    )


def _tile_tokens(family: VisionFamily, values: Values, tower: Values, refusal: Refusal) -> int:
    """Returns the number of tokens of a tile."""
    if family.connector == "pooled":
        return values["mm_tokens_per_image"]
    side, scale = tower["image_size"] // tower["patch_size"], values["scale_factor"]
    if side % scale:
        raise refusal("scale_factor", scale, f"a divisor of a tile's {side} patches a side")
    if side in _UNEVEN or side > _MOST_PATCHES:
        known = "a size at which transformers numbers patches in order (16, 26, 27 or 32 a side)"
        raise refusal("vision_config.image_size", tower["image_size"], known)
    return (side // scale) ** 2


def _without_none(values: Values) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def with_vision(vision: Vision, text: Values) -> dict[str, Any] | None:
    """Returns the config.json of a language model with vision.

    Args:
      text: config.json of the language model.

    Returns:
      None if no family has such a language model and such vision.
    """
    for name, family in VISION_FAMILIES.items():
        same = (family.connector, family.both_ways) == (vision.connector, vision.both_ways)
        if not same or family.text != text["model_type"]:
            continue
        tower = {theirs: getattr(vision, ours) for theirs, ours in _TOWER_KEYS.items()}
        tower |= {"layer_norm_eps": vision.norm_eps, "model_type": family.tower}
        connector = {"scale_factor": vision.scale}
        if family.connector == "pooled":
            tower |= {"vision_use_head": False}
            connector = {"mm_tokens_per_image": vision.tile_tokens}
        inner = {key: text[key] for key in text if key not in ("architectures", "torch_dtype")}
        return {
            "architectures": [family.architecture],
            "model_type": name,
            "text_config": inner,
            "vision_config": tower,
            **connector,
            family.image_token: vision.token_id,
            "tie_word_embeddings": text["tie_word_embeddings"],
            "torch_dtype": text["torch_dtype"],
        }
    return None


def processor_values(vision: Vision) -> dict[str, Any] | None:
    """Returns the preprocessor_config.json of a model of our own, which sees an image as one tile.

    Args:
      vision: the model's vision.

    Returns:
      None if a connector has no such processing.
    """
    if vision.connector != "pooled":
        return None
    side, half = vision.image_size, [0.5, 0.5, 0.5]
    return {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": side, "width": side},
        "do_resize": True,
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": half,
        "image_std": half,
        "image_seq_length": vision.tile_tokens,
    }
