"""Seconds of prefills and trainer steps with images, beside those of as many tokens of text.

    python benchmarks/vision.py [--sizes=64,128,192] [--rounds=7] [--only=PART,PART] [--clock=wall]

The language model has the shape of the other benchmarks (`benchmarks/peers/serving.py`) and the
traits of Gemma 3. Its tower has four blocks, and pools sixteen patches to a token. Each prompt has
64 tokens, of which those in the middle are an image if there is one. All of it is in float32, with
random weights.

- A prefill has 16 prompts, from their arrival until each has its first token. Images are new to
  the engine, or it has their features already.
- A trainer step has 16 rows of 64 + 16 tokens, and one update of the clipped policy loss with
  AdamW. A group of eight rows has one image, or each row has its own.

Beside them, transformers does the same on torch from the same weights, with our allocator's
settings, in an environment of its own; it is left out if that cannot be made. Its images are one
for each row. It computes the logits of the first tokens, but samples none.

Sides are measured in turns. The figures are minimum, median and maximum of the rounds, and the same
of the ratios in each round. "Operations" are those of the matrix products: what the ratio to text
would be if each took as long. Both libraries use all cores that the process may use, so `taskset`
chooses their number. `--clock=cpu` counts the CPU seconds of a process, which hardly depend on
other load.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pages import spread
from peers.asking import Ask, Peer, PeerRequest, all_in_turns, timed
from peers.serving import CLIP, CLOCKS, LEARNING_RATE, SHAPE, TOWER

from rl_sync.cluster import malloc
from rl_sync.configs import base
from rl_sync.learning.objective import LossConfig
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.writing import write_checkpoint
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.models.vision.vision_config import Vision
from rl_sync.plan.roofline import block_flops, logit_flops
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.sequence_images import SequenceImages, pooled
from rl_sync.settings.config_reading import read_settings
from rl_sync.types import Params, RowImages, Rows, TrainBatch

_KEPT = "RL_SYNC_BENCHMARK"
ROWS, PROMPT_TOKENS, NEW_TOKENS, GROUP_SIZE = 16, 64, 16, 8
IMAGE_TOKEN = SHAPE.vocab - 1
TEXT, PEER = "text", "transformers, "


class Case(NamedTuple):
    """A measurement beside text.

    Attributes:
      operations: operations as a multiple of those of text.
      like: text of the same library, to which it is compared.
      peer: measurement of transformers for the same result; empty for none.
    """

    operations: float
    like: str = TEXT
    peer: str = ""


def vision_of(side: int) -> Vision:
    """Returns the vision of a model whose images have so many pixels a side."""
    return Vision(
        image_size=side,
        patch_size=TOWER.patch,
        embed_dim=TOWER.width,
        num_layers=TOWER.layers,
        num_heads=TOWER.heads,
        mlp_dim=TOWER.mlp,
        tile_tokens=(side // TOWER.patch // TOWER.pooled) ** 2,
        token_id=IMAGE_TOKEN,
    )


def model_of(vision: Vision | None) -> ModelConfig:
    """Returns a language model with the traits of Gemma 3."""
    slides = tuple(layer + 1 < SHAPE.layers for layer in range(SHAPE.layers))
    return ModelConfig(
        *SHAPE,
        max_length=256,
        activation="gelu_tanh",
        qk_norm=True,
        norm_offset=1.0,
        post_norms=True,
        scale_embedding=True,
        sliding_window=512,
        sliding_layers=slides,
        local_rope_base=10_000.0,
        rope_base=1_000_000.0,
        vision=vision,
    )


def image_place(vision: Vision) -> tuple[int, int]:
    """Returns where an image's tokens begin in a prompt, and where they end."""
    start = (PROMPT_TOKENS - vision.tile_tokens) // 2
    return start, start + vision.tile_tokens


def tower_flops(vision: Vision) -> float:
    """Returns the operations of one tile in the tower and the projector, in the forward pass."""
    patches, E = vision.patches**2, vision.embed_dim
    of_block = 4 * E * E + 2 * E * vision.mlp_dim + 2 * patches * E
    of_patch = 3 * vision.patch_size**2 * E + vision.num_layers * of_block
    projected = vision.tile_tokens * vision.feature_width * SHAPE.width
    return 2.0 * (patches * of_patch + projected)


class Drawn(NamedTuple):
    """Random rows.

    Attributes:
      tokens: token ids.
      at: place of each token's features in those of its row's image.
      tiles: one image a row.
    """

    tokens: np.ndarray
    at: np.ndarray
    tiles: np.ndarray


def drawn(vision: Vision, tokens: int, seed: int) -> Drawn:
    """Draws rows with an image each."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, IMAGE_TOKEN, (ROWS, tokens)).astype(np.int32)
    at = np.full((ROWS, tokens), -1, np.int32)
    start, end = image_place(vision)
    at[:, start:end] = np.arange(vision.tile_tokens)
    side = vision.image_size
    return Drawn(ids, at, rng.integers(0, 256, (ROWS, side, side, 3), np.uint8))


class Prefills:
    """Two engines: one of a policy that sees, and one of a policy that reads text alone."""

    def __init__(self, vision: Vision, params: Params) -> None:
        self._vision = vision
        text = {name: value for name, value in params.items() if name != "vision"}
        self._engines = {True: self._engine(vision, params), False: self._engine(None, text)}

    def _engine(self, vision: Vision | None, params: Params) -> Engine:
        engine = Engine(model_of(vision), Layout.single(), EngineOptions(slots=ROWS))
        engine.load(params, 0)
        return engine

    def ask(self, request: PeerRequest, sees: bool, images: bool, known: bool = False) -> float:
        """Measures prefills, until each prompt has its first token.

        Args:
          sees: whether the policy has vision.
          images: whether prompts have images.
          known: whether the engine has these images' features already.
        """
        tokens, at, tiles = drawn(self._vision, PROMPT_TOKENS, request["seed"])
        shown: list[SequenceImages | None] = [None] * ROWS
        if images:
            tokens = np.where(at >= 0, IMAGE_TOKEN, tokens)
            names = [f"{known} {request['seed']} {row}" for row in range(ROWS)]
            shown = [
                SequenceImages(at[row], tiles[row : row + 1], (names[row],)) for row in range(ROWS)
            ]
        asked = [
            CompletionRequest(tokens[row], Sampling(1, ()), seed=(row,), images=shown[row])
            for row in range(ROWS)
        ]
        engine = self._engines[sees]
        if known and (all_shown := pooled(shown, self._vision.tile_tokens, PROMPT_TOKENS)):
            engine.features(all_shown)
        return timed(request, lambda: engine.generate(asked))


def trainer_of(vision: Vision | None, trains_tower: bool) -> Trainer:
    """Makes a trainer with one update a step."""
    config = base.get_config()
    config.workdir = "none"
    config.algorithm.update({"kl_coefficient": 0.0, "clip_low": CLIP, "clip_high": CLIP})
    config.optimizer.update({"updates_per_batch": 1, "learning_rate": LEARNING_RATE})
    settings = read_settings(config.to_dict())
    loss = LossConfig(
        settings.algorithm,
        GROUP_SIZE,
        max_completion_tokens=NEW_TOKENS,
        end_ids=(),
        microbatch_rows=0,
    )
    return Trainer(
        model_of(vision),
        loss,
        dataclasses.replace(settings.optimizer, tower_share=float(trains_tower)),
        temperature=1.0,
        steps=settings.trainer.steps,
        sft=settings.sft,
        logits_bytes=settings.trainer.logits_bytes,
        layout=Layout.single(),
        trains_tower=trains_tower,
    )


class OurStep:
    """A trainer, its state, and the images that its batches have.

    Args:
      vision: vision of all sides' images.
      sees: whether the policy has vision.
      tiles: number of images of a batch.
      features: whether batches have features in place of pixels.
    """

    def __init__(
        self,
        vision: Vision,
        *,
        sees: bool,
        tiles: int = 0,
        trains_tower: bool = True,
        features: bool = False,
    ) -> None:
        self._vision, self._tiles, self._features = vision, tiles, features
        self._sees, self._trains_tower = sees, trains_tower

    @functools.cached_property
    def _trainer(self) -> Trainer:
        return trainer_of(self._vision if self._sees else None, self._trains_tower)

    @functools.cached_property
    def _state(self) -> TrainState:
        return self._trainer.begin(self._trainer.init(jax.random.key(0)))

    def ask(self, request: PeerRequest) -> float:
        """Measures one step on rows of random tokens."""
        batch = self._batch(request["seed"])
        return timed(request, lambda: self._step(batch))

    def _step(self, batch: TrainBatch) -> None:
        self._state, metrics = self._trainer.step(self._state, batch)
        jax.block_until_ready((self._state, metrics))

    def _batch(self, seed: int) -> TrainBatch:
        tokens, at, tiles = drawn(self._vision, PROMPT_TOKENS + NEW_TOKENS, seed)
        mask = np.broadcast_to(np.arange(tokens.shape[1]) >= PROMPT_TOKENS, tokens.shape)
        images = None
        if self._tiles:
            tokens = np.where(at >= 0, IMAGE_TOKEN, tokens)
            each = self._vision.tile_tokens
            first = np.arange(ROWS)[:, None] // (ROWS // self._tiles) * each
            shown = jnp.asarray(tiles[: self._tiles])
            if self._features:
                shape = (self._tiles, each, self._vision.feature_width)
                shown = jax.random.normal(jax.random.key(seed), shape)
            images = RowImages(shown, jnp.asarray(np.where(at >= 0, at + first, -1)))
        rows = Rows(
            tokens=jnp.asarray(tokens),
            completion_mask=jnp.asarray(mask),
            behavior_logprobs=jnp.asarray(np.where(mask, -6.2, 0.0), jnp.float32),
            policy_versions=jnp.zeros(tokens.shape, jnp.int32),
            images=images,
        )
        rewards = np.random.default_rng(seed).standard_normal(ROWS)
        return jax.block_until_ready(TrainBatch(rows, jnp.asarray(rewards, jnp.float32)))


Asks = dict[str, Callable[[PeerRequest], float]]


def prefills(vision: Vision, params: Params) -> tuple[Asks, dict[str, Case]]:
    """Returns our sides of a prefill, and all cases."""
    of_text = ROWS * PROMPT_TOKENS * block_flops(model_of(None), PROMPT_TOKENS)
    more = 1 + ROWS * tower_flops(vision) / of_text
    engines = Prefills(vision, params)
    asks: Asks = {
        TEXT: functools.partial(engines.ask, sees=False, images=False),
        "text, by a policy that sees": functools.partial(engines.ask, sees=True, images=False),
        "new images": functools.partial(engines.ask, sees=True, images=True),
        "known images": functools.partial(engines.ask, sees=True, images=True, known=True),
    }
    cases = {
        TEXT: Case(1, peer=PEER + TEXT),
        "text, by a policy that sees": Case(1),
        "new images": Case(more, peer=PEER + "images"),
        "known images": Case(1),
        PEER + TEXT: Case(1, like=PEER + TEXT),
        PEER + "images": Case(more, like=PEER + TEXT),
    }
    return asks, cases


def steps(vision: Vision) -> tuple[Asks, dict[str, Case]]:
    """Returns our sides of a trainer step, and all cases."""
    model, tokens = model_of(None), PROMPT_TOKENS + NEW_TOKENS
    of_text = 3 * ROWS * tokens * (block_flops(model, tokens) + logit_flops(model))
    of_tile = tower_flops(vision) / of_text
    groups = ROWS // GROUP_SIZE
    # Frozen, the tower has no backward pass.
    frozen = "tower frozen, an image a group"
    made = {
        TEXT: (OurStep(vision, sees=False), Case(1, peer=PEER + TEXT)),
        "text, by a policy that sees": (OurStep(vision, sees=True), Case(1)),
        "tower trained, an image a group": (
            OurStep(vision, sees=True, tiles=groups),
            Case(1 + 3 * groups * of_tile),
        ),
        frozen: (
            OurStep(vision, sees=True, tiles=groups, trains_tower=False),
            Case(1 + groups * of_tile),
        ),
        "features, an image a group": (
            OurStep(vision, sees=True, tiles=groups, trains_tower=False, features=True),
            Case(1),
        ),
        "tower trained, an image a row": (
            OurStep(vision, sees=True, tiles=ROWS),
            Case(1 + 3 * ROWS * of_tile, peer=PEER + "an image a row"),
        ),
    }
    cases = {name: case for name, (_, case) in made.items()}
    cases[PEER + TEXT] = Case(1, like=PEER + TEXT)
    cases[PEER + "an image a row"] = Case(1 + 3 * ROWS * of_tile, like=PEER + TEXT)
    return {name: step.ask for name, (step, _) in made.items()}, cases


def table(cases: dict[str, Case], secs: dict[str, list[float]]) -> None:
    """Prints seconds, and ratios in each round."""
    print(
        "| | seconds | x text | operations, x text | x transformers |\n" + "|---" * 5 + "|",
        flush=True,
    )
    later = {name: found[1:] for name, found in secs.items()}  # The first calls compile.
    for name, found in later.items():
        case = cases[name]
        beside = ratios(found, later[case.peer]) if case.peer in later else ""
        print(
            f"| {name} | {spread(found, '.3f')} | {ratios(found, later[case.like])}"
            f" | {case.operations:.2f} | {beside} |",
            flush=True,
        )


def ratios(some: list[float], others: list[float]) -> str:
    """Formats the ratios of two sides in each round."""
    return spread([one / other for one, other in zip(some, others, strict=True)], ".2f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="64,128,192", help="sides of images, in pixels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="parts of names: these cases, and text")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    if _KEPT not in os.environ:
        environment = {**malloc.environment(os.environ), _KEPT: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    for side in map(int, arguments.sizes.split(",")):
        vision = vision_of(side)
        params = jax.jit(init_params, static_argnums=0)(model_of(vision), jax.random.key(side))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            write_checkpoint(path, model_of(vision), params)
            request = {
                "path": str(path), "clock": arguments.clock, "rows": ROWS, "image_size": side,
                "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS,
                "image_token": IMAGE_TOKEN, "image_at": image_place(vision),
            }  # fmt: skip
            measure(vision, params, request, arguments.rounds, arguments.only.split(","))


def measure(
    vision: Vision, params: Params, request: PeerRequest, rounds: int, only: list[str]
) -> None:
    """Measures and prints prefills and steps with images of one size."""
    for action, (asks, cases) in (
        ("prefill", prefills(vision, params)),
        ("train", steps(vision)),
    ):
        # All others are compared with text.
        cases = {
            name: case
            for name, case in cases.items()
            if name.endswith(TEXT) or any(part in name for part in only)
        }
        peer = Peer("transformers", "vision_peer.py")
        peer.await_imports()
        sides: dict[str, tuple[Ask, PeerRequest]] = {
            name: (ask, request) for name, ask in asks.items() if name in cases
        }
        for name in cases:
            if name.startswith(PEER):
                asked = {**request, "action": action, "images": name != PEER + TEXT}
                sides[name] = (peer.ask, asked)
        secs = all_in_turns(sides, rounds)
        peer.close()
        side, tokens = vision.image_size, vision.tile_tokens
        print(f"\n{action}, images of {side} pixels a side ({tokens} tokens)\n")
        table(cases, secs)


if __name__ == "__main__":
    main()
