"""`config.rollout` as a frozen, validated record."""

from __future__ import annotations

import dataclasses
from typing import cast, get_args

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import CachePolicy, Engine
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.sequence import Decode
from rl_sync.settings.records import ConfigError, one_of, require


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """`config.rollout`: how completions are sampled and decoded; see `Sampling` and `Engine`.

    Attributes:
      temperature, top_k, top_p, min_p, repetition_penalty, min_new_tokens: see `Sampling`.
      stop_ids: token ids that end a completion besides the tokenizer's, separated by commas.
      stop_strings: texts that end a completion, separated by `|`.
      slots: the most sequences that an explorer decodes at once; None for all of a lease.
      chunk_tokens: the most tokens of a sequence between two looks of the host.
      swap: when an explorer takes newer weights: `between` two rollouts, or also `in_flight`, so
        that completions go on with them (latest pulls over checkpoints alone).
      cache: what becomes of the keys and values of sequences that new weights find under way:
        `keep` them, or `recompute` them with the new weights.
      budget_tokens: a rollout ends when so many were drawn, and the next one goes on with what is
        unfinished, with whatever weights are in use then (latest pulls alone); 0 for no budget. A
        group may take as many rollouts as it needs while it is not too stale to be trained on; from
        then on the trainer waits for it.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    min_new_tokens: int
    stop_ids: str
    stop_strings: str
    slots: int | None
    chunk_tokens: int
    swap: str
    cache: str
    budget_tokens: int

    def __post_init__(self) -> None:
        require(
            all(
                part.strip().isdecimal() and int(part) < 2**31
                for part in self.stop_ids.split(",")
                if part.strip()
            ),
            f"rollout.stop_ids={self.stop_ids!r} must be token ids separated by commas.",
        )
        require(
            self.temperature > 0,
            f"rollout.temperature must be above 0, not {self.temperature:g}. Exploration needs"
            " chance; evaluations take the likeliest token anyway.",
        )
        require(
            self.min_new_tokens >= 0,
            f"rollout.min_new_tokens must be at least 0, not {self.min_new_tokens}.",
        )
        require(
            self.slots is None or self.slots >= 1,
            f"rollout.slots must be at least 1, or nothing for all of a lease, not {self.slots}.",
        )
        require(
            self.chunk_tokens >= 1,
            f"rollout.chunk_tokens must be at least 1, not {self.chunk_tokens}.",
        )
        require(
            self.budget_tokens >= 0,
            "rollout.budget_tokens must be at least 1, or 0 for rollouts that finish all that they"
            f" begin, not {self.budget_tokens}.",
        )
        one_of("rollout.swap", self.swap, ("between", "in_flight"))
        one_of("rollout.cache", self.cache, get_args(CachePolicy))

    def sampling(self, max_new_tokens: int, eos_ids: tuple[int, ...]) -> Sampling:
        """How completions of a task are drawn.

        Raises:
          ConfigError: a value outside its range.
        """
        more = [int(part) for part in self.stop_ids.split(",") if part.strip()]
        try:
            return Sampling(
                max_new_tokens=max_new_tokens,
                stop_ids=(*eos_ids, *more),
                stop_strings=tuple(part for part in self.stop_strings.split("|") if part),
                min_new_tokens=self.min_new_tokens,
                repetition_penalty=self.repetition_penalty,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
            )
        except ValueError as error:
            raise ConfigError(f"rollout.{error}") from error

    def engine(self, model: ModelConfig, slots: int, decode: Decode, layout: Layout) -> Engine:
        """What an explorer generates with."""
        return Engine(
            model,
            slots,
            chunk_tokens=self.chunk_tokens,
            cache=cast(CachePolicy, self.cache),
            decode=decode,
            layout=layout,
        )
