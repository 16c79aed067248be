# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "transformers>=5"]
# ///
"""Transformers' Gemma 3 with vision, on torch: prefills, and steps of the same loss with AdamW.

It reads the checkpoint that a request names, and has as many threads as the process has cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from serving import CLIP, LEARNING_RATE, SHAPE, PeerRequest, serve
from transformers import Gemma3ForConditionalGeneration

torch.set_num_threads(len(os.sched_getaffinity(0)))


@functools.cache
def model(path: str) -> Gemma3ForConditionalGeneration:
    return Gemma3ForConditionalGeneration.from_pretrained(path, dtype=torch.float32)


@functools.cache
def optimizer(path: str) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model(path).parameters(), lr=LEARNING_RATE)


def inputs(request: PeerRequest, tokens: int) -> dict[str, torch.Tensor]:
    """Makes rows of random tokens, each with an image if the request has images."""
    generator = torch.Generator().manual_seed(request["seed"])
    rows, side, image = request["rows"], request["image_size"], slice(*request["image_at"])
    ids = torch.randint(3, SHAPE.vocab - 1, (rows, tokens), generator=generator)
    kinds = torch.zeros_like(ids)
    if not request["images"]:
        return {"input_ids": ids, "token_type_ids": kinds}
    ids[:, image], kinds[:, image] = request["image_token"], 1
    pixels = torch.randint(0, 256, (rows, 3, side, side), generator=generator)
    return {
        "input_ids": ids,
        "token_type_ids": kinds,
        "pixel_values": (pixels / 255.0 - 0.5) / 0.5,
    }


def prefill(request: PeerRequest) -> Callable[[], None]:
    """Makes the call that prefills rows, and computes the logits of their first new token."""
    given = inputs(request, request["prompt_tokens"])
    if not request["images"]:
        del given["token_type_ids"]

    def work() -> None:
        used = model(request["path"]).eval()
        with torch.inference_mode():
            used(**given, use_cache=True, logits_to_keep=1)

    return work


def train(request: PeerRequest) -> Callable[[], None]:
    """Makes the call of one step on rows of random tokens."""
    path, asked, drawn = request["path"], request["prompt_tokens"], request["new_tokens"]
    given = inputs(request, asked + drawn)
    targets = given["input_ids"][:, asked:, None]
    old = torch.full((request["rows"], drawn), -6.2)
    advantages = torch.randn(
        request["rows"], 1, generator=torch.Generator().manual_seed(request["seed"])
    )

    def work() -> None:
        used = model(path).train()
        logits = used(**given, use_cache=False).logits[:, asked - 1 : -1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(-1, targets)[..., 0]
        ratio = torch.exp(logprobs - old)
        clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
        loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        loss.backward()
        optimizer(path).step()
        optimizer(path).zero_grad(set_to_none=True)

    return work


if __name__ == "__main__":
    serve({"prefill": prefill, "train": train})
