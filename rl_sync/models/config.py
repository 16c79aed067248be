"""The architecture of a decoder-only transformer, in one frozen and validated record."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from rl_sync.models.vision.vision_config import Vision
from rl_sync.spelling import require_one_of
from rl_sync.token_records import RouteShape

DTYPES = ("float32", "bfloat16", "float16")
Activation = Literal["silu", "gelu_tanh"]
Quantization = Literal["int8", "float8_e4m3fn"]
Remat = Literal["none", "full", "attention", "dots", "dots_no_batch"]
AttentionPath = Literal["auto", "einsum", "dot_product", "blocks", "splash", "cudnn", "triton"]
LoraTarget = Literal["q", "k", "v", "o", "gate", "up", "down"]
ATTENTION_TARGETS: tuple[LoraTarget, ...] = ("q", "k", "v", "o")
_MLP_TARGETS = ("gate", "up", "down")
HEAD = "scalar_head"
"""Name of a scalar head among a model's parameters."""


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Scaling of RoPE's frequencies, for longer rows than in the first training.

    Attributes:
      kind: `linear` divides every frequency by `factor`. `llama3` divides only the low ones, with a
        smooth transition between `low_freq_factor` and `high_freq_factor` turns within
        `original_max_length` tokens (as published with Llama 3.1).
      factor: ratio of the new row length to the first one.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192


@dataclasses.dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of each MLP.

    Attributes:
      count: number of experts in each layer, E.
      per_token: number of experts that each token is routed to.
      mlp_dim: width of one expert, F.
      normalize: whether the weights of a token's experts are scaled to sum to 1.
    """

    count: int
    per_token: int
    mlp_dim: int
    normalize: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(
                f"model.experts.per_token={self.per_token} must be from 1 to"
                f" model.experts.count={self.count}: a token goes to different experts."
            )
        if self.mlp_dim < 1:
            raise ValueError(f"model.experts.mlp_dim={self.mlp_dim} must be at least 1.")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Low-rank adapters of frozen kernels, W + (alpha / rank) · A·B (LoRA, arXiv:2106.09685).

    Attributes:
      rank: number of columns of A, r.
      alpha: numerator of the scale.
      targets: projections that get an adapter.
    """

    rank: int
    alpha: float
    targets: tuple[LoraTarget, ...] = get_args(LoraTarget)

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(
                f"model.lora.rank={self.rank} must be at least 1 and model.lora.alpha="
                f"{self.alpha} above 0."
            )
        if not self.targets:
            raise ValueError(
                f"model.lora.targets='' must name some of {', '.join(get_args(LoraTarget))}."
            )
        for target in self.targets:
            require_one_of("model.lora.targets", target, get_args(LoraTarget))

    @property
    def scale(self) -> float:
        """Factor on A·B: alpha / rank."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture of a model: everything that defines its function except the parameters.

    Attributes:
      vocab_size: number of tokens in the embedding, V.
      embed_dim: width of the residual stream, D.
      num_layers: number of blocks of attention and MLP, L.
      num_heads: number of query heads, N.
      num_kv_heads: number of key and value heads, K; each serves N / K query heads.
      head_dim: width of a head, H; even, since RoPE rotates pairs.
      mlp_dim: width of the gated MLP, F.
      max_length: maximum number of tokens in a row, prompt and completion together.
      rope_base: θ of the rotary position embedding.
      norm_eps: ε that is added to the mean square inside RMSNorm.
      tie_embeddings: whether the embedding is also the output projection.
      activation: activation of the MLP's gate.
      qkv_bias: whether queries, keys and values have biases (Qwen 2).
      qk_norm: whether queries and keys are normalized in each head before RoPE (Qwen 3, Gemma 3).
      norm_offset: number that is added to the scale of every RMSNorm: 1 if stored scales are around
        0 (Gemma).
      post_norms: whether the outputs of attention and of the MLP are normalized too (Gemma).
      scale_embedding: whether embeddings are multiplied by √D (Gemma).
      query_scale: factor on q·kᵀ; None for 1/√H.
      rope_scaling: scaling of RoPE's frequencies; None for none.
      sliding_window: number of newest tokens that a token attends to in a sliding layer, the token
        itself included.
      sliding_layers: one flag for each layer, true if attention uses the sliding window; empty for
        none.
      local_rope_base: θ of sliding layers, without scaling; None for the same RoPE in all layers.
      experts: mixture of experts; None for a dense MLP in each layer.
      vision: tower and projector for images in prompts; None for text alone.
      lora: low-rank adapters; None for none.
      quantization: dtype of the kernels of a model that only generates; see
        `rl_sync.models.quantization`. None for kernels that are not quantized.
      scalar_head: whether a scalar head without a bias replaces the output projection, as in a
        reward model.
      dtype: dtype of the blocks' computations. Log-probabilities are always float32.
      remat: activations of a block that the backward pass recomputes: with `none` none, with `full`
        all, with `attention` all but the results of kernels that attend, with `dots` all but matrix
        products, with `dots_no_batch` all but matrix products with parameters.
      attention: `einsum` for the implementation here and `dot_product` for
        `jax.nn.dot_product_attention`, both with all scores at once; `blocks` for those of a block
        of queries and keys at a time; `splash`, `cudnn` or `triton` for a kernel of
        `rl_sync.models.kernels.flash`. `auto` is `einsum` on CPUs; elsewhere it is a kernel that
        supports the call, or `blocks` if none does.
      batch_invariant: whether a token's results have the same bits whatever is computed beside it,
        and whether it is decoded or scored; see `rl_sync.models.invariant`.

    Raises:
      ValueError: a size is not positive, or values contradict each other.
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
    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    post_norms: bool = False
    scale_embedding: bool = False
    query_scale: float | None = None
    rope_scaling: RopeScaling | None = None
    sliding_window: int = 0
    sliding_layers: tuple[bool, ...] = ()
    local_rope_base: float | None = None
    experts: Experts | None = None
    vision: Vision | None = None
    lora: Lora | None = None
    quantization: Quantization | None = None
    scalar_head: bool = False
    dtype: str = "float32"
    remat: Remat = "none"
    attention: AttentionPath = "auto"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "embed_dim", "num_layers", "num_heads", "num_kv_heads"):
            self._require(name, getattr(self, name) > 0, "must be positive")
        for name in ("head_dim", "mlp_dim", "max_length", "rope_base", "norm_eps"):
            self._require(name, getattr(self, name) > 0, "must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads={self.num_heads} query heads cannot share"
                f" model.num_kv_heads={self.num_kv_heads} evenly: use a divisor of num_heads."
            )
        self._require("head_dim", not self.head_dim % 2, "must be even: RoPE rotates pairs")
        choices = {"activation": get_args(Activation), "dtype": DTYPES}
        choices |= {"remat": get_args(Remat), "attention": get_args(AttentionPath)}
        for name, allowed in choices.items():
            require_one_of(f"model.{name}", getattr(self, name), allowed)
        if self.sliding_layers:
            self._require(
                "sliding_layers",
                len(self.sliding_layers) == self.num_layers,
                f"must have one flag for each of {self.num_layers} layers",
            )
        if any(self.sliding_layers):
            self._require("sliding_window", self.sliding_window > 0, "must be positive")
        if self.vision and self.vision.token_id >= self.vocab_size:
            raise ValueError(
                f"model.vision.token_id={self.vision.token_id} must be below model.vocab_size="
                f"{self.vocab_size}: images' tokens are tokens like others."
            )
        if self.batch_invariant and (self.experts or self.attention != "auto"):
            raise ValueError(
                "model.batch_invariant=true is for models without experts, with"
                " model.attention=auto: leave it out, or use rollout.score=trainer, which takes the"
                " gap out of the ratios."
            )
        if self.experts and self.lora and set(self.lora.targets) & set(_MLP_TARGETS):
            raise ValueError(
                f"model.lora.targets={','.join(self.lora.targets)} cannot adapt experts: use"
                " q,k,v,o with a mixture of experts."
            )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"model.{name}={getattr(self, name)!r} {rule}.")

    @property
    def routes(self) -> RouteShape | None:
        """Shape of a token's routes; None without a mixture of experts."""
        if self.experts is None:
            return None
        return RouteShape(self.num_layers, self.experts.per_token, self.experts.count)

    @property
    def heads_per_kv(self) -> int:
        """Number of query heads that share one key and value head: N / K."""
        return self.num_heads // self.num_kv_heads

    @property
    def attention_scale(self) -> float:
        """Factor on q·kᵀ."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale
