"""Buckets: programs are compiled for a few sizes, and real sizes are rounded up to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

_LEAST_ROWS = 8
_LEAST_SPAN = 64
_LEAST_PROMPT = 16
_SPAN_MULTIPLE = 8
_LEAST_PREFILL_TOKENS = 512
_MOST_PREFILL_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that an engine's programs exist for; real sizes are rounded up to them.

    Attributes:
      slots: maximum rows of a batch.
      length: positions of a row.
      paged: whether a cache is read only as far as its rows reach, so that one span serves all.
      shards: number of equal shares of the slots, each of which gets as many rows.
      divisor: divisor of the padded lengths of prompts, unless a row is shorter.
    """

    slots: int
    length: int
    paged: bool = False
    shards: int = 1
    divisor: int = 1

    @property
    def rows(self) -> tuple[int, ...]:
        """Possible numbers of rows of a batch, largest first: all slots, then powers of two."""
        sizes = [self.slots]
        while (smaller := power_of_two(sizes[-1]) // 2) >= _LEAST_ROWS:
            if smaller % self.shards:
                break
            sizes.append(smaller)
        return tuple(sizes)

    @property
    def spans(self) -> tuple[int, ...]:
        """Numbers of positions of a row that decoding may read, largest first.

        They are the whole length, half of it, a quarter, and so on. So decoding reads less than
        twice the filled positions.
        """
        sizes = [self.length]
        while not self.paged:
            smaller = -(-sizes[-1] // (2 * _SPAN_MULTIPLE)) * _SPAN_MULTIPLE
            if smaller < _LEAST_SPAN or smaller >= sizes[-1]:
                break
            sizes.append(smaller)
        return tuple(sizes)

    def row_bucket(self, rows: int) -> int:
        """Returns the smallest batch size with room for `rows` rows, or else all slots."""
        return min((size for size in self.rows if size >= rows), default=self.slots)

    def next_smaller(self, rows: int) -> int:
        """Returns the next batch size below `rows`; 0 if there is none."""
        return max((size for size in self.rows if size < rows), default=0)

    def span_bucket(self, tokens: int) -> int:
        """Returns how many positions of a row are read if it has `tokens` tokens."""
        return min((size for size in self.spans if size >= tokens), default=self.length)

    def prompt_bucket(self, tokens: int) -> int:
        """Returns the padded length of a prompt: a power of two, or the next multiple of the
        divisor, or the whole length of a row.
        """
        padded = max(power_of_two(tokens), _LEAST_PROMPT)
        return min(-(-padded // self.divisor) * self.divisor, self.length)

    def prompt_buckets(self, lengths: Iterable[int]) -> tuple[int, ...]:
        """Returns the padded lengths of prompts of these lengths, from the smallest."""
        return tuple(sorted({self.prompt_bucket(length) for length in lengths}))

    def prefill_rows(self, prompts: int, tokens: int) -> int:
        """Returns the rows of one prefill for `prompts` prompts, each padded to `tokens`."""
        return prefill_rows(prompts, tokens, _LEAST_PREFILL_TOKENS, _MOST_PREFILL_TOKENS)

    def recomputed_rows(self, rows: int, tokens: int) -> int:
        """Returns how many rows of a batch are recomputed at once, up to position `tokens`."""
        return min(prefill_rows(rows, tokens, 1, _MOST_PREFILL_TOKENS), rows)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def prefill_rows(prompts: int, tokens: int, least_tokens: int, most_tokens: int) -> int:
    """Returns the rows of a prefill for `prompts` prompts of `tokens` each: a power of two.

    Small batches are filled up to about `least_tokens`, so that few sizes exist. Prompts beyond
    `most_tokens` are left for the next prefill.
    """
    least, most = (_floor(max(1, limit // tokens)) for limit in (least_tokens, most_tokens))
    return min(max(power_of_two(prompts), least), most)


def _floor(number: int) -> int:
    return 1 << (number.bit_length() - 1)
