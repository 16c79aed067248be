"""Shared prompts: rows that hold one copy of a prompt and several completions of it.

A completion attends to the copy and to itself, at the positions of its trajectory. So its
log-probabilities equal those of a separate row, and the prompt is computed once (Prefix
Grouper, arXiv:2506.05433).

Letters in shapes: B rows, T positions, C tokens of a row that are learned, N trajectories, S
positions of a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from rl_sync.types import Packing, SharedPrompts, as_input

_LENGTHS = 8  # Number of lengths of lists of learned tokens; the step compiles for each length.


class TokenSpan(NamedTuple):
    """The positions of a trajectory's tokens; the prompt ends at `start`."""

    start: int
    end: int


class Branches(NamedTuple):
    """A prompt with completions of it, in one row.

    Attributes:
      spans: spans of the trajectories, by index.
    """

    spans: dict[int, TokenSpan]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return next(iter(self.spans.values())).start

    @property
    def tokens(self) -> int:
        """Number of tokens of the prompt and all completions."""
        return self.prompt_tokens + sum(end - start for start, end in self.spans.values())


def branches(
    tokens: Int[np.ndarray, "N S"],
    mask: Bool[np.ndarray, "N S"],
    indices: Iterable[int],
    row_tokens: int,
    seen: Iterable[Shaped[np.ndarray, "N S ..."]] = (),
) -> list[Branches]:
    """Joins neighbouring trajectories that have the same prompt, as many as fit into a row.

    Trajectories without learned tokens are excluded, and so are tokens after the last learned one.

    Args:
      mask: true at the learned tokens; the prompt is everything before the first of them.
      indices: trajectories to consider, in order.
      row_tokens: maximum number of tokens of a row.
      seen: inputs of the policy at each token besides its id: features of images, recorded routes.
        The same text with others is another prompt.
    """
    identity = [tokens, *seen]
    found: list[Branches] = []
    for i in indices:
        (learned,) = np.nonzero(mask[i])
        if not learned.size:
            continue
        # A first token cannot be learned, so a prompt has at least one token.
        span = TokenSpan(max(int(learned[0]), 1), int(learned[-1]) + 1)
        if found and _continues(identity, found[-1], i, span, row_tokens):
            found[-1].spans[i] = span
        else:
            found.append(Branches({i: span}))
    return found


def _continues(
    identity: list[Shaped[np.ndarray, "N S ..."]],
    last: Branches,
    i: int,
    span: TokenSpan,
    row_tokens: int,
) -> bool:
    """Says whether a trajectory has the prompt of `last` and fits into the same row."""
    prompt, first = slice(last.prompt_tokens), next(iter(last.spans))
    return (
        span.start == last.prompt_tokens
        and last.tokens + span.end - span.start <= row_tokens
        and all(np.array_equal(values[i, prompt], values[first, prompt]) for values in identity)
    )


def learned_lengths(row_tokens: int) -> list[int]:
    """Returns the lengths that a row's list of learned tokens is padded to, smallest first."""
    step = math.ceil(row_tokens / _LENGTHS)
    return sorted({min(row_tokens, step * count) for count in range(1, _LENGTHS + 1)})


class Places:
    """The token at each position of some rows, and the token before it.

    Args:
      rows, row_tokens: number of rows, and of positions in each.
      stride: S, positions of a trajectory before the layout.

    Attributes:
      source: index of each position's token in the flattened trajectories; -1 for padding.
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

        The lists of learned tokens get the smallest of the `learned_lengths` that holds each list.

        Args:
          mask: true at the learned tokens.
        """
        positions = np.where(self.source >= 0, self.source % self._stride, 0)
        learned = mask & (positions > 0)
        counts = learned.sum(axis=1)
        size = next(size for size in learned_lengths(mask.shape[1]) if size >= np.max(counts))
        at = np.argsort(~learned, axis=1, kind="stable")[:, :size]
        is_there = np.arange(size) < counts[:, None]
        before = np.where(is_there, np.take_along_axis(self._before, at, axis=1), 0)
        prompts = SharedPrompts(
            as_input(self._copies),
            learned=as_input(np.where(is_there, at, mask.shape[1]).astype(np.int32)),
            before=as_input(before),
        )
        return Packing(as_input(positions), as_input(self._trajectories), prompts)
