"""Counts the floating-point operations and memory traffic of a model from its shape.

A product of an m × k and a k × n matrix counts 2·m·k·n. Other operations are not counted.

Letters in shapes: B rows, T positions, D embed, K kv heads, N query heads that share a kv head,
H head dim, F mlp, V vocab.
"""

from __future__ import annotations

from rl_sync.models.config import ModelConfig


def block_flops(config: ModelConfig, context: float) -> float:
    """Returns the operations of one token in all blocks, in the forward pass.

    Args:
      context: mean number of tokens that a token attends to, unless a smaller window limits it.
    """
    D, heads = config.embed_dim, config.num_heads * config.head_dim
    kernels = D * (heads + 2 * config.num_kv_heads * config.head_dim) + heads * D
    if config.experts:
        kernels += (
            D * config.experts.count + config.experts.per_token * 3 * D * config.experts.mlp_dim
        )
    else:
        kernels += 3 * D * config.mlp_dim
    slides = config.sliding_layers or (False,) * config.num_layers
    seen = sum(min(context, config.sliding_window) if one else context for one in slides)
    return 2.0 * kernels * config.num_layers + 4.0 * heads * seen


def logit_flops(config: ModelConfig) -> float:
    """Returns the operations of one token's logits, in the forward pass."""
    return 0.0 if config.scalar_head else 2.0 * config.embed_dim * config.vocab_size


def block_traffic(config: ModelConfig, itemsize: int) -> float:
    """Returns the bytes that a token's matrix products read and write in a forward pass.

    It counts the products of all blocks, but not the reading of kernels.
    """
    D, heads = config.embed_dim, config.num_heads * config.head_dim
    kv = 2 * config.num_kv_heads * config.head_dim
    attention = D + 2 * (heads + kv) + 2 * heads + D
    F = config.mlp_dim
    if config.experts:
        F = config.experts.per_token * config.experts.mlp_dim
    mlp = D + 2 * 2 * F + F + D
    return float(itemsize * config.num_layers * (attention + mlp))
