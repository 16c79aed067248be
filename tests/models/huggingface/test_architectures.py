import dataclasses
import json

import pytest

from rl_sync.models.config import Experts, ModelConfig, RopeScaling
from rl_sync.models.huggingface.architectures import config_values, model_config
from rl_sync.models.huggingface.families import FAMILIES
from tests.models import tiny
from tests.models.huggingface import golden

# As they were published, with transformers 4; keys that say nothing of the function left out.
LLAMA_3_2_1B = {
    "model_type": "llama", "attention_bias": False, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
QWEN_2_5_HALF_B = {
    "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN_3_30B_A3B = {
    "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
GEMMA_3_4B = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "config"),
    [
        (
            LLAMA_3_2_1B,
            ModelConfig(
                128256, 2048, 16, 32, 8, 64, 8192, 131072, 500000.0, 1e-5,
                rope_scaling=RopeScaling("llama3", 32.0, 1.0, 4.0, 8192),
            ),
        ),
        (
            QWEN_2_5_HALF_B,
            ModelConfig(151936, 896, 24, 14, 2, 64, 4864, 32768, 1000000.0, 1e-6, qkv_bias=True),
        ),
        (
            QWEN_3_30B_A3B,
            ModelConfig(
                151936, 2048, 48, 32, 4, 128, 6144, 40960, 1000000.0, 1e-6, False,
                qk_norm=True, experts=Experts(128, 8, 768, True),
            ),
        ),
        (
            MISTRAL_7B,
            ModelConfig(
                32000, 4096, 32, 32, 8, 128, 14336, 32768, 10000.0, 1e-5, False,
                sliding_window=4096, sliding_layers=(True,) * 32,
            ),
        ),
        (
            GEMMA_3_4B,
            ModelConfig(
                262208, 2560, 34, 8, 4, 256, 10240, 131072, 1000000.0, 1e-6,
                activation="gelu_tanh", qk_norm=True, norm_offset=1.0, post_norms=True,
                scale_embedding=True, query_scale=1 / 16, rope_scaling=RopeScaling("linear", 8.0),
                sliding_window=1024, local_rope_base=10000.0,
                sliding_layers=tuple((i + 1) % 6 != 0 for i in range(34)),
            ),
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_published_configs_are_read_and_written_again(values, config):
    assert model_config(values) == config
    assert model_config(config_values(config, "bfloat16")) == config


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_what_transformers_5_wrote_and_what_we_write_mean_the_same(family):
    config = model_config(golden.values(family))
    ours = json.loads(json.dumps(config_values(config, "float32")))
    assert model_config(ours) == config


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope_scaling": RopeScaling("linear", 2.0)}),
        ("mistral", {"embed_dim": 18}),  # Llama's must be a multiple of its heads.
        ("mistral", {"sliding_window": 3, "sliding_layers": (True, True)}),
        ("qwen2", {"qkv_bias": True, "tie_embeddings": False}),
        ("qwen2", {"qkv_bias": True, "sliding_window": 3, "sliding_layers": (False, True)}),
        ("qwen3", {"qk_norm": True}),
        ("qwen3_moe", {"qk_norm": True, "experts": Experts(5, 2, 12)}),
    ],
)
def test_a_model_of_our_own_becomes_the_family_that_does_the_same(family, changes):
    config = dataclasses.replace(tiny.CONFIG, dtype="bfloat16", remat="full", **changes)
    values = config_values(config, "float32")
    assert values["model_type"] == family
    assert model_config(values) == dataclasses.replace(config, dtype="float32", remat="none")


@pytest.mark.parametrize("name", sorted(set(tiny.VARIANTS) - {"sliding"}))
def test_traits_that_no_family_lacks_are_all_written(name):
    config = tiny.VARIANTS[name]
    assert model_config(config_values(config, "float32")) == config


def test_a_model_that_no_family_does_is_refused_with_what_the_nearest_lacks():
    with pytest.raises(ValueError, match=r"gemma3_text is nearest, but for .*query_scale=0\.3"):
        config_values(tiny.VARIANTS["sliding"], "float32")


REFUSED = [
    ("llama3", {"model_type": "gpt2"}, ["model_type='gpt2'", "llama, mistral, qwen2"]),
    ("llama3", {"attention_bias": True}, ["attention_bias=True"]),
    ("llama3", {"mlp_bias": True}, ["mlp_bias=True"]),
    ("llama3", {"hidden_act": "relu"}, ["hidden_act='relu'", "silu"]),
    ("llama3", {"hidden_act": "relu", "hidden_activation": "silu"}, ["hidden_act='relu'"]),
    ("llama3", {"hidden_act": ["silu"]}, ["hidden_act=['silu']"]),
    ("gemma3", {"hidden_activation": "relu", "hidden_act": "silu"}, ["hidden_activation='r"]),
    ("llama3", {"hidden_size": None}, ["lacks 'hidden_size'"]),
    ("llama3", {"hidden_size": "64"}, ["hidden_size='64'", "a whole number from 1"]),
    ("llama3", {"max_position_embeddings": None}, ["lacks 'max_position_embeddings'"]),
    ("llama3", {"rms_norm_eps": None}, ["rms_norm_eps=None", "a number"]),
    ("llama3", {"tie_word_embeddings": "no"}, ["tie_word_embeddings='no'", "true or false"]),
    ("llama3", {"rope_parameters": [1]}, ["rope_parameters=[1]", "an object"]),
    ("llama3", {"rope_parameters": {"rope_theta": None}}, ["rope_theta=None", "a number"]),
    ("qwen2", {"layer_types": 3}, ["layer_types=3", "a list"]),
    ("gemma3", {"model_type": "gemma3", "text_config": [1]}, ["text_config=[1]"]),
    (
        "llama3",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        ["rope_type='yarn'", "default, linear or llama3"],
    ),
    (
        "llama3",
        {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "dynamic"}},
        ["rope_scaling.rope_type='dynamic'"],
    ),
    ("qwen2", {"rope_scaling": {"mrope_section": [1]}}, ["rope_scaling.mrope_section=[1]"]),
    ("qwen2", {"rope_scaling": {"rope_type": "linear"}}, ["lacks 'factor'"]),
    ("qwen2", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
    ("qwen2", {"layer_types": ["chunked_attention"] * 3}, ["'chunked_attention'"]),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, ["'sliding_attention'"]),
    ("qwen2", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
    ("qwen3_moe", {"mlp_only_layers": [0]}, ["mlp_only_layers=[0]"]),
    ("qwen3_moe", {"decoder_sparse_step": 2}, ["decoder_sparse_step=2"]),
    ("gemma3", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping=50.0"]),
    ("gemma3", {"final_logit_softcapping": 30.0}, ["final_logit_softcapping=30.0"]),
    ("gemma3", {"use_bidirectional_attention": True}, ["use_bidirectional_attention=True"]),
]
"""Families, changes of their configs, and parts of the messages that refuse these."""


def test_what_the_transformer_does_not_do_is_refused_by_key_and_value(subtests):
    for family, changes, parts in REFUSED:
        with subtests.test(f"{family} with {changes}"):
            with pytest.raises(ValueError) as refused:
                model_config({**golden.values(family), **changes})
            for part in parts:
                assert part in str(refused.value)


def _with_vision(inner, **outer):
    text = {**golden.values("gemma3"), **inner}
    return {"model_type": "gemma3", "text_config": text, "vision_config": {}, **outer}


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(("outer", "tied"), [({}, True), (False, False), (True, True)])
def test_gemma_with_vision_is_tied_as_the_outer_config_says(inner, outer, tied):
    said = {} if outer == {} else {"tie_word_embeddings": outer}
    values = _with_vision({"tie_word_embeddings": inner}, **said)
    assert model_config(values).tie_embeddings is tied


def test_gemma_with_vision_that_is_quantized_is_refused():
    with pytest.raises(ValueError, match=r"asks for quantization_config=\{'bits': 4\}"):
        model_config(_with_vision({}, quantization_config={"bits": 4}))


def test_keys_of_other_families_are_not_read():
    values = golden.values("llama3")
    assert model_config({**values, "hidden_activation": "gelu_pytorch_tanh"}) == (
        model_config(values)
    )
    values = {**MISTRAL_7B, "use_sliding_window": False}
    assert model_config(values).sliding_layers == (True,) * 32


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_is_silent_about_is_what_transformers_assumes(family):
    from transformers import AutoConfig

    sizes = {"hidden_size": 64, "num_hidden_layers": 30, "num_attention_heads": 32}
    sizes |= {"intermediate_size": 96, "vocab_size": 50}
    if FAMILIES[family].slides == "late":
        sizes["use_sliding_window"] = True
    spoken = AutoConfig.for_model(family, **sizes).to_dict()
    assert model_config({"model_type": family, **sizes}) == model_config(spoken)


def test_late_layers_of_qwen_slide_where_the_config_says_so():
    values = {**QWEN_2_5_HALF_B, "use_sliding_window": True, "max_window_layers": 20}
    config = model_config(values)
    assert config.sliding_layers == (False,) * 20 + (True,) * 4
    assert config.sliding_window == 32768
