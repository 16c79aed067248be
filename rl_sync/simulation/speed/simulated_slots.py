"""An explorer's slots in decode steps: which groups are whole after how many of them."""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple


class Decoded(NamedTuple):
    """Some decode steps.

    Attributes:
      steps: their number.
      row_steps: sum over the steps of the number of sequences, which is the number of tokens.
      whole: groups whose last sequence has ended.
    """

    steps: int
    row_steps: int
    whole: list[int]


class SimulatedSlots:
    """Sequences in slots, and those that wait for one.

    A slot that becomes free is given to the next sequence at once. The real engine waits until some
    are free; the measured time of a decode step contains that.

    Args:
      slots: number of slots.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._now = 0
        self._waiting: collections.deque[tuple[int, int]] = collections.deque()
        self._ends: list[tuple[int, int]] = []
        self._left: collections.Counter[int] = collections.Counter()

    @property
    def occupied(self) -> int:
        """Number of slots that have a sequence, or that one waits for."""
        return len(self._ends) + len(self._waiting)

    def add(self, group: int, lengths: Sequence[int]) -> None:
        """Adds the sequences of a group."""
        self._left[group] = len(lengths)
        self._waiting.extend((group, length) for length in lengths)
        self._fill()

    def advance(self, most_steps: float = math.inf, most_tokens: float = math.inf) -> Decoded:
        """Decodes until all groups are whole, or until a limit is reached.

        Args:
          most_steps: maximum number of steps.
          most_tokens: number of tokens after which no further step begins.
        """
        began, tokens, whole = self._now, 0, list[int]()
        while self._ends and tokens < most_tokens:
            live = len(self._ends)
            until = min(self._ends[0][0], began + most_steps)
            if most_tokens < math.inf:
                until = min(until, self._now + math.ceil((most_tokens - tokens) / live))
            tokens += live * int(until - self._now)
            self._now = int(until)
            while self._ends and self._ends[0][0] <= self._now:
                _, group = heapq.heappop(self._ends)
                self._left[group] -= 1
                if not self._left[group]:
                    del self._left[group]
                    whole.append(group)
            self._fill()
            if self._now - began >= most_steps:
                break
        return Decoded(self._now - began, tokens, whole)

    def _fill(self) -> None:
        while self._waiting and len(self._ends) < self.slots:
            group, length = self._waiting.popleft()
            heapq.heappush(self._ends, (self._now + length, group))
