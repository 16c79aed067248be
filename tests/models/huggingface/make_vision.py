# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "transformers>=5.20", "numpy", "safetensors", "pillow"]
# ///
"""Makes the reference models with vision of tests/data/models: uv run --script FILE [DIRECTORY].

Each is tiny and has random weights. `expected.npz` has what torch computes with it on a CPU. The
checkpoint `gradients` has the gradient of its loss, under the names of its weights. Nothing else
needs torch.
"""

import copy
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

ROOT = Path(__file__).resolve().parents[2] / "data" / "models"
IMAGE, BEGIN, END = 60, 58, 59
TILE_TOKENS, SIDE, NEW_TOKENS = 4, 16, 6
TOWER = dict(
    hidden_size=24,
    intermediate_size=36,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=SIDE,
    patch_size=4,
)
TEXT = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
)
# Rows of text of these lengths, with an image between any two.
ROWS = [(3, 2, 4), (7,), (0, 5, 1, 3)]


def gemma() -> torch.nn.Module:
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3Config(
        text_config=dict(TEXT, sliding_window=6, layer_types=layers, query_pre_attn_scalar=8),
        vision_config=dict(TOWER, vision_use_head=False),
        mm_tokens_per_image=TILE_TOKENS,
        image_token_index=IMAGE,
        boi_token_index=BEGIN,
        eoi_token_index=END,
    )
    config._attn_implementation = "eager"
    return Gemma3ForConditionalGeneration(config)


def smolvlm() -> torch.nn.Module:
    config = SmolVLMConfig(
        text_config=dict(TEXT, model_type="llama"),
        vision_config=TOWER,
        scale_factor=2,
        image_token_id=IMAGE,
    )
    config._attn_implementation = "eager"
    return SmolVLMForConditionalGeneration(config)


def inputs() -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Returns the tokens of each row, the place of each token's features, and all tiles."""
    rng = np.random.default_rng(0)
    tokens, places, tile = [], [], 0
    for lengths in ROWS:
        row: list[int] = []
        at: list[int] = []
        for number, length in enumerate(lengths):
            if number:
                row += [BEGIN, *[IMAGE] * TILE_TOKENS, END]
                at += [-1, *range(tile * TILE_TOKENS, (tile + 1) * TILE_TOKENS), -1]
                tile += 1
            row += rng.integers(3, BEGIN, length).tolist()
            at += [-1] * length
        tokens.append(np.array(row))
        places.append(np.array(at))
    tiles = rng.integers(0, 256, (tile, SIDE, SIDE, 3)).astype(np.uint8)
    return tokens, places, tiles


def logits_of(model: torch.nn.Module, row: np.ndarray, tiles: np.ndarray) -> torch.Tensor:
    """Computes the logits of one row with its own tiles."""
    given = {"input_ids": torch.tensor(row)[None]}
    if len(tiles):
        pixels = torch.tensor(tiles).permute(0, 3, 1, 2).float() / 255
        pixels = (pixels - 0.5) / 0.5
        of_gemma = isinstance(model, Gemma3ForConditionalGeneration)
        given["pixel_values"] = pixels if of_gemma else pixels[None]
        if of_gemma:
            given["token_type_ids"] = (given["input_ids"] == IMAGE).long()
    return model(**given, use_cache=False).logits[0]


def main(root: Path) -> None:
    tokens, places, tiles = inputs()
    longest = max(map(len, tokens))
    for seed, make in enumerate((gemma, smolvlm)):
        torch.manual_seed(seed)
        model = make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        loss, count, first = torch.tensor(0.0), 0, 0
        scores = np.zeros((len(tokens), longest, TEXT["vocab_size"]), np.float32)
        greedy = np.zeros((len(tokens), NEW_TOKENS), np.int32)
        for number, (row, at) in enumerate(zip(tokens, places, strict=True)):
            own = tiles[first : (at.max() + 1) // TILE_TOKENS]
            first += len(own)
            logits = logits_of(model, row, own)
            scores[number, : len(row)] = logits.detach().numpy()
            drawn = torch.tensor(at[1:] < 0)
            logprobs = logits[:-1].log_softmax(-1)
            loss = loss - logprobs.gather(1, torch.tensor(row[1:])[:, None])[:, 0][drawn].sum()
            count += int(drawn.sum())
            longer = row
            for step in range(NEW_TOKENS):
                with torch.no_grad():
                    best = int(logits_of(model, longer, own)[-1].argmax())
                assert best != IMAGE
                greedy[number, step], longer = best, np.append(longer, best)
        loss = loss / count
        loss.backward()
        directory = root / {"gemma": "gemma3_vision"}.get(make.__name__, make.__name__)
        model.save_pretrained(directory)
        slopes = copy.deepcopy(model)
        with torch.no_grad():
            pairs = zip(slopes.parameters(), model.parameters(), strict=True)
            for slope, parameter in pairs:
                slope.copy_(parameter.grad)
        slopes.save_pretrained(directory / "gradients")
        padded = [np.pad(row, (0, longest - len(row))) for row in tokens]
        ats = [np.pad(at, (0, longest - len(at)), constant_values=-1) for at in places]
        np.savez_compressed(
            directory / "expected.npz",
            tokens=np.array(padded, np.int32),
            at=np.array(ats, np.int32),
            lengths=np.array([len(row) for row in tokens], np.int32),
            tiles=tiles,
            logits=scores,
            greedy=greedy,
            loss=loss.detach().numpy(),
        )
        print(directory.name, greedy.tolist(), loss.item())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
