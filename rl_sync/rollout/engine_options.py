"""Options of an engine. They are apart from its code, so that settings are read without JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from rl_sync.rollout.speculation.draft_pace import Speculation
from rl_sync.spelling import require_one_of
from rl_sync.token_records import SamplerShape

if TYPE_CHECKING:
    from rl_sync.rollout.engine_programs import CompiledProgram
    from rl_sync.rollout.sampling import LogitsProcessors
    from rl_sync.rollout.sequence import Decode

CachePolicy = Literal["keep", "recompute"]


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """Limits of an engine, the memory of its caches, and what requests may ask of it.

    Attributes:
      slots: maximum number of sequences that are decoded at once.
      max_length: maximum number of tokens of a sequence, prompt included; None for the model's.
      chunk_tokens: maximum number of tokens that a sequence gets in a step.
      stepped_tokens: maximum number of tokens of an extension that decode steps read, one a step.
        For longer extensions the whole sequence is prefilled again.
      cache: treatment of the KV caches of in-flight and parked sequences when new weights arrive:
        `keep` them, or `recompute` them with the new weights. Offloaded caches are then kept or
        dropped.
      cache_bytes: memory for caches on each device, as a pool of pages. Sequences start as far as
        pages suffice, and those that begin alike share pages. If pages lack, the youngest sequences
        are put aside and continue later. None to reserve a cache of `max_length` tokens for each
        slot.
      reuses_prefixes: whether requests may share pages with other requests that begin alike. Then
        rounding depends on earlier requests. The completions of one request always share.
      kv_offload_bytes: host memory for the caches of evicted and interrupted sequences, for all
        processes of the program together. The least recently used caches are dropped first. With 0
        no cache is offloaded.
      frozen_vision: whether all weights have the same vision tower, so that features of images are
        kept when new weights arrive.
      image_cache_bytes: host memory for features of images; the least recently used are dropped.
      decode: function from token ids to text, which stop strings need.
      seed: seed for requests without a seed of their own.
      changes: kinds of logits processors that requests will ask for; a request that asks for
        another one recompiles decoding. Fewer kinds make programs that compile faster. None for
        all kinds.
      records_routes: whether completions record the experts of their tokens, for a model with a
        mixture of experts.
      sampler: shape of the distributions that completions record for each token; None for none.
      speculation: whether decode steps draft tokens: `auto` as long as they are faster with drafts
        than without. All processes of a program must decide alike, so several need another value.
      draft_tokens: maximum number of drafted tokens of a sequence in a step.
      draft_bytes: host memory for finished completions, from which later ones of the same prompt
        take drafts, as they do from those in flight; with 0 a sequence has only its own tokens.
      before_first: called with each program before its first call, which compiles it.

    Raises:
      ValueError: a size is out of range, or a name is unknown.
    """

    slots: int = 64
    max_length: int | None = None
    chunk_tokens: int = 16
    stepped_tokens: int = 64
    cache: CachePolicy = "keep"
    cache_bytes: int | None = None
    reuses_prefixes: bool = True
    kv_offload_bytes: int = 0
    frozen_vision: bool = False
    image_cache_bytes: int = 256 << 20
    decode: Decode | None = None
    seed: int = 0
    changes: LogitsProcessors | None = None
    records_routes: bool = False
    sampler: SamplerShape | None = None
    speculation: Speculation = "off"
    draft_tokens: int = 4
    draft_bytes: int = 64 << 20
    before_first: Callable[[CompiledProgram], None] = lambda program: None

    def __post_init__(self) -> None:
        for name in ("slots", "chunk_tokens", "draft_tokens"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        for name in ("stepped_tokens", "kv_offload_bytes", "draft_bytes"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}={value} must be at least 0.")
        require_one_of("cache", self.cache, get_args(CachePolicy))
        require_one_of("speculation", self.speculation, get_args(Speculation))


DEFAULTS = EngineOptions()
