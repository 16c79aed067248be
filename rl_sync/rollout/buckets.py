"""Buckets: programs are compiled for a few sizes, and real sizes are rounded up to them."""

from __future__ import annotations

_LEAST_ROWS = 8
_LEAST_SPAN = 64
_LEAST_PROMPT = 16
_SPAN_MULTIPLE = 8


def power_of_two(number: int) -> int:
    """Returns the least power of two that is not below a number of at least 1."""
    return 1 << (number - 1).bit_length()


def row_bucket(rows: int, slots: int) -> int:
    """Returns the rows of a batch that needs `rows` of them: a power of two, or all slots."""
    return min(max(power_of_two(max(rows, 1)), _LEAST_ROWS), slots)


def next_smaller(rows: int, slots: int) -> int:
    """Returns the next smaller size of a batch of `rows`; 0 if there is none."""
    half = power_of_two(rows) // 2
    return half if half >= _LEAST_ROWS and rows <= slots else 0


def span_bucket(tokens: int, length: int) -> int:
    """Returns how many slots of a cache of `length` are read for rows of `tokens`.

    It is the length itself, half of it, a quarter, and so on. So less than twice the filled slots
    are read.
    """
    bucket = length
    while (half := _half(bucket)) >= max(tokens, _LEAST_SPAN) and half < bucket:
        bucket = half
    return bucket


def _half(span: int) -> int:
    return -(-span // (2 * _SPAN_MULTIPLE)) * _SPAN_MULTIPLE


def prompt_bucket(tokens: int, length: int) -> int:
    """Returns the padded length of a prompt: a power of two, or the whole length of a row."""
    return min(max(power_of_two(tokens), _LEAST_PROMPT), length)


def prefill_rows(prompts: int, tokens: int, least_tokens: int, most_tokens: int) -> int:
    """Returns the rows of a prefill for `prompts` prompts of `tokens` each: a power of two.

    Small batches are filled up to about `least_tokens`, so that few sizes exist. Prompts beyond
    `most_tokens` are left for the next prefill.
    """
    least, most = (_floor(max(1, limit // tokens)) for limit in (least_tokens, most_tokens))
    return min(max(power_of_two(prompts), least), most)


def _floor(number: int) -> int:
    return 1 << (number.bit_length() - 1)
