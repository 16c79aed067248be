"""Counts of an engine's work, which only grow; differences of two counts give rates."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counts since the engine was made, or between two moments as `later - earlier`.

    Attributes:
      completions: number of finished completions.
      prefill_tokens: number of tokens of prefilled prompts (a prompt of several completions counts
        once), of sequences whose cache was recomputed, and of extensions that decode steps read.
      prefill_secs: time spent on prefills.
      stepped_tokens: the part of `prefill_tokens` that decode steps read; its time counts as
        decoding.
      reused_tokens: number of tokens whose cache was reused when their sequences were extended.
      evictions: number of held sequences that lost their slots.
      preemptions: number of sequences in flight that were put aside, because pages lacked.
      set_aside: number of evictions and preemptions whose cache was offloaded to host memory.
      restored: number of offloaded caches that went into a slot again.
      dropped: number of offloaded caches that were dropped for others, or because of new weights.
      decode_tokens: number of sampled tokens.
      surplus_tokens: the part of `decode_tokens` that no completion has: it follows a stop string,
        or a served engine had drawn it when it was lost.
      opponent_tokens: the part of `decode_tokens` that opponents said in episodes.
      restarted_tokens: the part of `decode_tokens` in attempts at episodes that began again.
      differing_tokens: number of tokens of begun episodes that were dropped, because no turn of
        their environments asked for them again; they are not part of `decode_tokens`.
      decode_secs: time spent on decoding.
      waiting_secs: time in which nothing was decoded, since episodes waited for their environments.
        What environments compute in this process is no part of it.
      steps: number of decode steps.
      row_steps: sum over decode steps of the number of rows, live or not.
      drafted_tokens: number of drafted tokens.
      accepted_tokens: number of drafted tokens that were the tokens to come.
      stretch_tokens: sum over chunks of the most tokens that a sequence read or sampled; without
        drafts it equals the number of steps.
      cache_filled, cache_allocated: sums over chunks of the cache positions in use, and of all
        cache positions. In a cache of pages all positions of a page in use count.
      cache_shared: sum over chunks of the cache positions that sharing saves.
      programs: number of compiled programs, one for each size of batch, span or prompt.
      compile_secs: time spent on compilation; no other time includes it.
      installs: number of versions that a served engine was given.
      install_secs: time until these were checked.
      paused_secs: the part of it in which the served engine drew no tokens.
    """

    completions: int = 0
    prefill_tokens: int = 0
    prefill_secs: float = 0.0
    stepped_tokens: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    set_aside: int = 0
    restored: int = 0
    dropped: int = 0
    decode_tokens: int = 0
    surplus_tokens: int = 0
    opponent_tokens: int = 0
    restarted_tokens: int = 0
    differing_tokens: int = 0
    decode_secs: float = 0.0
    waiting_secs: float = 0.0
    steps: int = 0
    row_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    stretch_tokens: int = 0
    cache_filled: int = 0
    cache_shared: int = 0
    cache_allocated: int = 0
    programs: int = 0
    compile_secs: float = 0.0
    installs: int = 0
    install_secs: float = 0.0
    paused_secs: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return _combined(self, other, operator.add)

    def __sub__(self, earlier: Stats) -> Stats:
        return _combined(self, earlier, operator.sub)

    @property
    def prefill_tokens_per_sec(self) -> float:
        """Prefilled tokens per second; 0 without prefills."""
        return _ratio(self.prefill_tokens - self.stepped_tokens, self.prefill_secs)

    @property
    def decode_tokens_per_sec(self) -> float:
        """Sampled tokens per second; 0 without sampled tokens."""
        return _ratio(self.decode_tokens, self.decode_secs)

    @property
    def occupancy(self) -> float:
        """Fraction of decoded rows that gave a token."""
        return _ratio(self.decode_tokens - self.accepted_tokens, self.row_steps)

    @property
    def cache_use(self) -> float:
        """Fraction of the allocated cache that held a sequence."""
        return _ratio(self.cache_filled, self.cache_allocated)

    @property
    def cache_shared_share(self) -> float:
        """Fraction of the positions that sequences need which sharing saves."""
        return _ratio(self.cache_shared, self.cache_filled + self.cache_shared)

    def summary(self) -> dict[str, float]:
        """Returns the numbers to log."""
        return {
            "steps": self.steps,
            "row_steps": self.row_steps,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "decode_secs": self.decode_secs,
            "prefill_secs": self.prefill_secs,
            "waiting_secs": self.waiting_secs,
            "prefill_tokens_per_sec": self.prefill_tokens_per_sec,
            "decode_tokens_per_sec": self.decode_tokens_per_sec,
            "occupancy": self.occupancy,
            "cache_use": self.cache_use,
            "cache_shared": self.cache_shared_share,
            "evictions": self.evictions,
            "preemptions": self.preemptions,
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
