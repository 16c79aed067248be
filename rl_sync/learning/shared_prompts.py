"""Shared prompts: rows of one copy of a prompt, and several completions behind it.

A completion attends to the copy and to itself, at the positions that it has in its trajectory. So
its log-probabilities are those of a row of its own, and the prompt is computed once (Prefix
Grouper, arXiv:2506.05433).

Letters in shapes: B rows, T positions, C tokens of a row that are learned, N trajectories, S
positions of a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from rl_sync.types import Packing, SharedPrompts

_LENGTHS = 8  # Of the lists of learned tokens; each compiles the trainer's step once.


class TokenSpan(NamedTuple):
    """The tokens of a trajectory, by their positions: those of the prompt end at `start`."""

    start: int
    end: int


class Branches(NamedTuple):
    """A prompt with completions of it, in one row.

    Attributes:
      spans: of the trajectories, by their index.
    """

    spans: dict[int, TokenSpan]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return next(iter(self.spans.values())).start

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of all completions."""
        return self.prompt_tokens + sum(end - start for start, end in self.spans.values())


def branches(
    tokens: Int[np.ndarray, "N S"],
    mask: Bool[np.ndarray, "N S"],
    indices: Iterable[int],
    row_tokens: int,
) -> list[Branches]:
    """Finds neighbors with one prompt, as many as a row holds.

    A trajectory without learned tokens is in none of them. Those after its last one are left out.

    Args:
      mask: true at the tokens that are learned; a prompt is what stands before the first one.
      indices: the trajectories to look at, in their order.
      row_tokens: the most tokens of a row.
    """
    found: list[Branches] = []
    for i in indices:
        (learned,) = np.nonzero(mask[i])
        if not learned.size:
            continue
        # Nothing can be learned about a first token, so a prompt has one at least.
        span = TokenSpan(max(int(learned[0]), 1), int(learned[-1]) + 1)
        if found and _continues(tokens, found[-1], i, span, row_tokens):
            found[-1].spans[i] = span
        else:
            found.append(Branches({i: span}))
    return found


def _continues(
    tokens: Int[np.ndarray, "N S"], last: Branches, i: int, span: TokenSpan, row_tokens: int
) -> bool:
    """Says whether a trajectory has the prompt of others, and room beside them."""
    prompt = slice(last.prompt_tokens)
    return (
        span.start == last.prompt_tokens
        and last.tokens + span.end - span.start <= row_tokens
        and np.array_equal(tokens[i, prompt], tokens[next(iter(last.spans)), prompt])
    )


def learned_lengths(row_tokens: int) -> list[int]:
    """Returns the lengths that lists of a row's learned tokens may have, from the smallest."""
    step = math.ceil(row_tokens / _LENGTHS)
    return sorted({min(row_tokens, step * count) for count in range(1, _LENGTHS + 1)})


class Places:
    """The token at each position of some rows, and the token before it.

    Args:
      rows, row_tokens: their number, and the positions of each.
      stride: S, positions of a trajectory before the layout.

    Attributes:
      source: its index in the flattened trajectories; -1 for padding.
    """

    def __init__(self, rows: int, row_tokens: int, stride: int):
        self._stride = stride
        self.source: Int[np.ndarray, "B T"] = np.full((rows, row_tokens), -1, np.int32)
        self._trajectories = np.full_like(self.source, -1)
        self._copies = np.full_like(self.source, -1)
        self._before = np.zeros_like(self.source)

    def put(self, family: Branches, row: int, start: int) -> None:
        """Puts a prompt with its completions into a row."""
        first, prompt_end = next(iter(family.spans)), start + family.prompt_tokens
        self._copies[row, start : start + family.tokens] = first
        self.source[row, start:prompt_end] = first * self._stride + np.arange(family.prompt_tokens)
        at = prompt_end
        for i, span in family.spans.items():
            there = slice(at, at + span.end - span.start)
            self.source[row, there] = i * self._stride + np.arange(*span)
            self._trajectories[row, there] = i
            self._before[row, there] = np.arange(at, there.stop) - 1
            self._before[row, at] = prompt_end - 1
            at = there.stop

    def packing(self, mask: Bool[np.ndarray, "B T"]) -> Packing:
        """Describes the rows.

        The lists of learned tokens have one of a few lengths, the shortest that is long enough.

        Args:
          mask: true at the tokens that are learned.
        """
        positions = np.where(self.source >= 0, self.source % self._stride, 0)
        learned = mask & (positions > 0)
        counts = learned.sum(axis=1)
        size = next(size for size in learned_lengths(mask.shape[1]) if size >= counts.max())
        at = np.argsort(~learned, axis=1, kind="stable")[:, :size]
        is_there = np.arange(size) < counts[:, None]
        of_prompts: dict[str, Any] = {
            "copies": self._copies,
            "learned": np.where(is_there, at, mask.shape[1]).astype(np.int32),
            "before": np.where(is_there, np.take_along_axis(self._before, at, axis=1), 0),
        }
        fields: dict[str, Any] = {"positions": positions, "trajectories": self._trajectories}
        return Packing(**fields, prompts=SharedPrompts(**of_prompts))
