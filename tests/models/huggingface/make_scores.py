# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "transformers>=4.57", "numpy", "safetensors"]
# ///
"""Makes the reference reward models of tests/data/models: uv run --script FILE [DIRECTORY].

Each is a tiny `AutoModelForSequenceClassification` with one label and random weights, and
`expected.npz` holds the scores that torch computes with it on a CPU. Nothing else needs torch.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

ROOT = Path(__file__).resolve().parents[2] / "data" / "models"
SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    num_labels=1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
CONFIGS = {
    "llama_score": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2_score": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3_score": Qwen3Config(**SIZES, tie_word_embeddings=False),
    "gemma3_score": Gemma3TextConfig(**SIZES, sliding_window=8),
}
LENGTHS = [16, 9, 12]


def main(root: Path) -> None:
    for name, config in CONFIGS.items():
        torch.manual_seed(len(name))
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        lengths = np.array(LENGTHS, np.int32)
        tokens = np.random.default_rng(0).integers(3, 61, (3, max(LENGTHS))).astype(np.int32)
        real = np.arange(max(LENGTHS)) < lengths[:, None]
        tokens[~real] = 0
        with torch.no_grad():
            scores = model(torch.tensor(tokens), attention_mask=torch.tensor(real)).logits[:, 0]
        directory = root / name
        model.save_pretrained(directory)
        np.savez(directory / "expected.npz", tokens=tokens, lengths=lengths, scores=scores.numpy())
        print(name, scores.tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
