"""The shape of a decoder-only transformer, in one frozen and validated record."""

from __future__ import annotations

import dataclasses

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that decides which function a model is, apart from its parameters.

    Attributes:
      vocab_size: V, tokens that the embedding knows.
      embed_dim: D, width of the residual stream.
      num_layers: L, blocks of attention and MLP.
      num_heads: N, query heads.
      num_kv_heads: K, key and value heads; each serves N / K query heads.
      head_dim: H, width of a head; even, since RoPE turns pairs.
      mlp_dim: F, width of the gated MLP.
      max_length: the most tokens in a row, prompt and completion together.
      rope_base: θ of the rotary position embedding.
      norm_eps: added to the mean square inside RMSNorm.
      tie_embeddings: whether the embedding is also the output projection.
      dtype: what the blocks compute in. Parameters and log-probabilities are float32 anyway.
      remat: whether the backward pass recomputes a block's activations instead of keeping them.

    Raises:
      ValueError: a size that is not positive, or sizes that do not fit each other.
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    max_length: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (bool, str)) or value > 0:
                continue
            raise ValueError(f"model.{field.name} must be positive, not {value}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads={self.num_heads} query heads cannot share"
                f" model.num_kv_heads={self.num_kv_heads} evenly: use a divisor of num_heads."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"model.head_dim={self.head_dim} must be even: RoPE turns pairs of coordinates."
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"model.dtype={self.dtype!r} is not one of {', '.join(DTYPES)}.")

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one key and value head: N / K."""
        return self.num_heads // self.num_kv_heads
