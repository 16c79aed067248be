"""Counts of an engine's work, which only grow; rates come from the difference of two counts."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counts since the engine was made, or between two moments as `later - earlier`.

    Attributes:
      completions: the number of finished completions.
      prefill_tokens: the tokens of prefilled prompts (a prompt of several completions counts once),
        of sequences whose cache was recomputed, and those that decode steps read.
      prefill_secs: the time spent on prefills.
      stepped_tokens: of the prefilled tokens, those of extensions that decode steps read; the time
        counts as decoding.
      reused_tokens: the number of tokens whose cache sequences kept when they were extended.
      evictions: the number of held sequences whose slot went to others.
      set_aside: of these, those whose cache was set aside in host memory.
      restored: the number of caches set aside that went into a slot again.
      dropped: the number of caches set aside that were lost to others, or to new weights.
      decode_tokens: the number of drawn tokens.
      decode_secs: the time spent on decoding.
      steps: the number of decode steps.
      row_steps: the sum over decode steps of the number of rows, live or not.
      cache_filled, cache_allocated: the sum over chunks of the cache slots in use, and of all
        slots.
      programs: the number of compiled programs, one for each size of batch, span or prompt.
      compile_secs: the time spent on compilation; no other time includes it.
    """

    completions: int = 0
    prefill_tokens: int = 0
    prefill_secs: float = 0.0
    stepped_tokens: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    set_aside: int = 0
    restored: int = 0
    dropped: int = 0
    decode_tokens: int = 0
    decode_secs: float = 0.0
    steps: int = 0
    row_steps: int = 0
    cache_filled: int = 0
    cache_allocated: int = 0
    programs: int = 0
    compile_secs: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return _combined(self, other, operator.add)

    def __sub__(self, earlier: Stats) -> Stats:
        return _combined(self, earlier, operator.sub)

    @property
    def prefill_tokens_per_sec(self) -> float:
        """Tokens that prefills read a second; 0 without prefills."""
        return _ratio(self.prefill_tokens - self.stepped_tokens, self.prefill_secs)

    @property
    def decode_tokens_per_sec(self) -> float:
        """Drawn tokens a second; 0 without drawn tokens."""
        return _ratio(self.decode_tokens, self.decode_secs)

    @property
    def occupancy(self) -> float:
        """The share of decoded rows that gave a token."""
        return _ratio(self.decode_tokens, self.row_steps)

    @property
    def cache_use(self) -> float:
        """The share of the allocated cache that held a sequence."""
        return _ratio(self.cache_filled, self.cache_allocated)

    def summary(self) -> dict[str, float]:
        """Returns the numbers to log."""
        return {
            "prefill_tokens_per_sec": self.prefill_tokens_per_sec,
            "decode_tokens_per_sec": self.decode_tokens_per_sec,
            "occupancy": self.occupancy,
            "cache_use": self.cache_use,
            "evictions": self.evictions,
            "set_aside": self.set_aside,
            "restored": self.restored,
            "dropped": self.dropped,
            "programs": self.programs,
            "compile_secs": self.compile_secs,
        }


def _combined(a: Stats, b: Stats, by: Callable[[Any, Any], Any]) -> Stats:
    names = [field.name for field in dataclasses.fields(Stats)]
    return Stats(**{name: by(getattr(a, name), getattr(b, name)) for name in names})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
