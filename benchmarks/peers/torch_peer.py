# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "transformers>=5"]
# ///
"""The basis of TRL: transformers' Qwen3 in torch, its `generate`, and the same loss with AdamW."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from serving import CLIP, LEARNING_RATE, SHAPE, PeerRequest, prompts_of, serve
from transformers import Qwen3Config, Qwen3ForCausalLM


@functools.cache
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=SHAPE.vocab,
        hidden_size=SHAPE.width,
        intermediate_size=SHAPE.mlp,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


@functools.cache
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW(model().parameters(), lr=LEARNING_RATE)


def rollout(request: PeerRequest) -> Callable[[], None]:
    """Makes the call that generates batches of `rows`, each as long as its longest row."""
    prompts, lengths, rows = torch.tensor(prompts_of(request)), request["lengths"], request["rows"]

    def work() -> None:
        model().eval()
        for start in range(0, len(prompts), rows):
            longest = max(lengths[start : start + rows])
            batch = prompts[start : start + rows]
            with torch.inference_mode():
                model().generate(
                    batch,
                    attention_mask=torch.ones_like(batch),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    min_new_tokens=longest,
                    max_new_tokens=longest,
                )

    return work


def train(request: PeerRequest) -> Callable[[], None]:
    """Makes the call of one step on rows of random tokens."""
    generator = torch.Generator().manual_seed(request["seed"])
    rows, asked, drawn = request["rows"], request["prompt_tokens"], request["new_tokens"]
    tokens = torch.randint(3, SHAPE.vocab, (rows, asked + drawn), generator=generator)
    old = torch.full((rows, drawn), -6.2)
    advantages = torch.randn(rows, 1, generator=generator)

    def work() -> None:
        model().train()
        logits = model()(tokens, use_cache=False).logits[:, asked - 1 : -1]
        logprobs = torch.log_softmax(logits, dim=-1)
        logprobs = logprobs.gather(-1, tokens[:, asked:, None])[..., 0]
        ratio = torch.exp(logprobs - old)
        clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
        loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        loss.backward()
        optimizer().step()
        optimizer().zero_grad(set_to_none=True)

    return work


if __name__ == "__main__":
    serve({"rollout": rollout, "train": train})
