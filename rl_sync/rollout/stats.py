"""What an engine has done, in numbers that only grow; rates are those of a difference."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counts since the engine was made, or between two moments: `later - earlier`.

    Attributes:
      completions: finished ones.
      prefill_tokens: tokens of prompts read, each prompt of several completions once, and
        of sequences whose cache was computed again.
      prefill_secs: time spent on that.
      decode_tokens: tokens drawn.
      decode_secs: time spent on that.
      steps: decode steps.
      row_steps: rows that decode steps were taken for, live or not.
      cache_filled, cache_allocated: slots of the cache at each chunk, in use and in all.
      programs: sizes of batch, span and prompt that something was compiled for.
      compile_secs: time spent on that; it is part of no other.
    """

    completions: int = 0
    prefill_tokens: int = 0
    prefill_secs: float = 0.0
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
        """0 where nothing was read."""
        return _ratio(self.prefill_tokens, self.prefill_secs)

    @property
    def decode_tokens_per_sec(self) -> float:
        """0 where nothing was drawn."""
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
        """The numbers to log."""
        return {
            "prefill_tokens_per_sec": self.prefill_tokens_per_sec,
            "decode_tokens_per_sec": self.decode_tokens_per_sec,
            "occupancy": self.occupancy,
            "cache_use": self.cache_use,
            "programs": self.programs,
            "compile_secs": self.compile_secs,
        }


def _combined(a: Stats, b: Stats, by: Callable[[Any, Any], Any]) -> Stats:
    names = [field.name for field in dataclasses.fields(Stats)]
    return Stats(**{name: by(getattr(a, name), getattr(b, name)) for name in names})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
