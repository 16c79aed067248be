# /// script
# requires-python = ">=3.11"
# dependencies = ["google-tunix==0.1.7"]
# ///
"""Tunix's Qwen3, its vanilla sampler, and its GRPO loss with AdamW."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from serving import CLIP, LEARNING_RATE, SHAPE, PeerRequest, prompts_of, serve
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.rl.common import compute_per_token_logps

PAD_ID, EOS_ID = 0, 1
NEVER = SHAPE.vocab + 1  # An end of sequence that is never drawn.


class Tokenizer:
    """A tokenizer of ids that are written as text."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int], **_: Any) -> str:
        return ""

    def bos_id(self) -> int:
        return 0

    def eos_id(self) -> int:
        return NEVER

    def pad_id(self) -> int:
        return PAD_ID


@functools.cache
def model() -> Qwen3:
    config = ModelConfig(
        num_layers=SHAPE.layers,
        vocab_size=SHAPE.vocab,
        embed_dim=SHAPE.width,
        hidden_dim=SHAPE.mlp,
        num_heads=SHAPE.heads,
        head_dim=SHAPE.head_dim,
        num_kv_heads=SHAPE.kv_heads,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    return Qwen3(config, rngs=nnx.Rngs(0))


@functools.cache
def sampler(cache_tokens: int) -> Sampler:
    cache = CacheConfig(cache_tokens, SHAPE.layers, SHAPE.kv_heads, SHAPE.head_dim)
    return Sampler(model(), Tokenizer(), cache)


def rollout(request: PeerRequest) -> Callable[[], None]:
    """Makes the call that generates batches of `rows`, each as long as its longest row."""
    prompts, lengths, rows = prompts_of(request), request["lengths"], request["rows"]
    texts = [" ".join(map(str, prompt)) for prompt in prompts]
    draw = sampler(request["cache_tokens"])

    def work() -> None:
        for start in range(0, len(texts), rows):
            draw(
                texts[start : start + rows],
                max_generation_steps=max(lengths[start : start + rows]),
                max_prompt_length=request["prompt_tokens"],
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                return_logprobs=True,
                eos_tokens=[NEVER],
                seed=request["seed"],
            )

    return work


class Step:
    """A jitted GRPO step, with its state."""

    def __init__(self) -> None:
        self.graph, self.state = nnx.split(model())
        self.optimizer = optax.adamw(LEARNING_RATE)
        self.moments = self.optimizer.init(self.state)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def update(self, state: Any, moments: Any, batch: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        prompts, completions, old, advantages = batch

        def loss_of(state: Any) -> Any:
            logprobs = compute_per_token_logps(
                self.graph, state, prompts, completions, PAD_ID, EOS_ID, stop_gradient=False
            )
            logprobs = logprobs[0] if isinstance(logprobs, tuple) else logprobs
            ratio = jnp.exp(logprobs - old)
            clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
            return -jnp.minimum(ratio * advantages, clipped * advantages).mean()

        loss, gradient = jax.value_and_grad(loss_of)(state)
        updates, moments = self.optimizer.update(gradient, moments, state)
        return optax.apply_updates(state, updates), moments, loss

    def run(self, batch: tuple[Any, ...]) -> None:
        self.state, self.moments, loss = self.update(self.state, self.moments, batch)
        jax.block_until_ready(loss)


@functools.cache
def step() -> Step:
    return Step()


def train(request: PeerRequest) -> Callable[[], None]:
    """Makes the call of one step on rows of random tokens."""
    rng = np.random.default_rng(request["seed"])
    rows, asked, drawn = request["rows"], request["prompt_tokens"], request["new_tokens"]
    tokens = rng.integers(3, SHAPE.vocab, (rows, asked + drawn)).astype(np.int32)
    old = np.full((rows, drawn), -6.2, np.float32)
    advantages = rng.standard_normal((rows, 1)).astype(np.float32)
    batch = (tokens[:, :asked], tokens[:, asked:], old, advantages)
    return lambda: step().run(batch)


if __name__ == "__main__":
    serve({"rollout": rollout, "train": train})
