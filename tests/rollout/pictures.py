"""A small model with vision, and prompts with images for it."""

import dataclasses

import numpy as np

from rl_sync.models.vision.vision_config import Vision
from rl_sync.sequence_images import TEXT, SequenceImages
from tests.models import tiny

IMAGE = 11
VISION = Vision(
    image_size=8,
    patch_size=2,
    embed_dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=12,
    tile_tokens=4,
    token_id=IMAGE,
)
CONFIG = dataclasses.replace(
    tiny.VARIANTS["sliding"],
    vocab_size=12,
    max_length=96,
    sliding_window=9,
    vision=VISION,
)


def tile(number):
    return np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)


def pictured(*parts):
    """Makes a prompt of tokens (lists) and images (numbers of tiles)."""
    ids, at, shown = [], [], []
    for part in parts:
        if isinstance(part, list):
            ids += part
            at += [TEXT] * len(part)
            continue
        ids += [IMAGE] * VISION.tile_tokens
        at += range(len(shown) * VISION.tile_tokens, (len(shown) + 1) * VISION.tile_tokens)
        shown.append(part)
    tiles = np.array([tile(number) for number in shown]).reshape(-1, 8, 8, 3)
    images = SequenceImages(np.array(at, np.int32), tiles, tuple(f"tile {n}" for n in shown))
    return np.array(ids, np.int32), images if shown else None
