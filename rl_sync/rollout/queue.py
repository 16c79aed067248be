"""Queue of requests whose completions have not all started, and their prefilled prompts."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.rollout.kv_offload import OffloadedCache
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.slots import Prefix


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request with completions to start, of which `next` have started.

    Attributes:
      ticket: number of the request.
      request: the request itself.
      seed: the request's own seed, or a seed from the engine.
      prefix, row: its prefilled prompt and the row in it; None and 0 before the prefill.
      copy: an offloaded cache to begin with, of a held or an interrupted sequence.
      given: for a held sequence, the number of prompt tokens that follow it.
      resumed: the interrupted sequence that continues; None for sequences to start.
      keys: keys of the pages of its tokens; None if they are not known yet.
    """

    ticket: int
    request: CompletionRequest
    seed: tuple[int, ...]
    next: int = 0
    prefix: Prefix | None = None
    row: int = 0
    given: int = 0
    copy: OffloadedCache | None = None
    resumed: GrowingSequence | None = None
    keys: tuple[bytes, ...] | None = None

    @functools.cached_property
    def tokens(self) -> Int[np.ndarray, " P"]:
        """Tokens whose keys and values a sequence begins with: the prompt, unless it is resumed."""
        return self.request.prompt if self.resumed is None else self.resumed.whole

    @functools.cached_property
    def indices(self) -> Sequence[int]:
        """Indices of the completions to start, in order."""
        if self.resumed is not None:
            return (self.resumed.index,)
        every, begun = range(self.request.completions), self.request.begun
        return [index for index in every if index not in begun] if begun else every

    @property
    def left(self) -> int:
        """Number of completions to start."""
        return len(self.indices) - self.next

    @property
    def is_aside(self) -> bool:
        """True if an offloaded cache is to be restored, so that nothing needs a prefill."""
        return self.copy is not None and self.copy.is_there


class Queue:
    """Requests in the order of their arrival, behind those that were put ahead."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._ahead = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def completions(self) -> int:
        """Number of completions to start."""
        return sum(waiting.left for waiting in self._waiting)

    @property
    def most_new_tokens(self) -> int:
        """Maximum number of new tokens of any queued request; 0 if there is none."""
        return max((w.request.sampling.max_new_tokens for w in self._waiting), default=0)

    @property
    def resumed(self) -> list[GrowingSequence]:
        """Interrupted sequences that are to continue."""
        return [waiting.resumed for waiting in self._waiting if waiting.resumed is not None]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    @property
    def head(self) -> Waiting:
        """The next request to start."""
        return self._waiting[0]

    def append(self, waiting: Waiting) -> None:
        """Puts a request at the end."""
        self._waiting.append(waiting)

    def put_ahead(self, waiting: Waiting) -> None:
        """Puts a request before the appended ones, but behind those already put ahead."""
        self._waiting.insert(self._ahead, waiting)
        self._ahead += 1

    def put_first(self, waiting: Waiting) -> None:
        """Puts a request before all others."""
        self._waiting.appendleft(waiting)
        self._ahead += 1

    def drop_finished_head(self) -> None:
        """Removes the next request if all of its completions are started."""
        if not self.head.left:
            self._waiting.popleft()
            self._ahead = max(0, self._ahead - 1)

    def forget_prefixes(self) -> None:
        """Drops all prefixes, which older weights computed; the prompts are prefilled again."""
        for waiting in self._waiting:
            waiting.prefix = waiting.keys = None

    def unread(
        self, free: int, alike: Callable[[Waiting], bool], capacity: Callable[[int], int]
    ) -> Sequence[Waiting]:
        """Returns the requests whose prompts to prefill now, in order, beginning with the head.

        Args:
          free: number of free slots. Only prompts for these slots cause a prefill; if the prefill
            has spare rows, later prompts get them.
          alike: says whether a prompt fits into the same prefill as the head's.
          capacity: maps a number of prompts to the number of rows of their prefill.
        """
        needed, unread = 0, []
        for waiting in self._waiting:
            if waiting.prefix is None and not waiting.is_aside and alike(waiting):
                needed += free > 0
                unread.append(waiting)
            free -= waiting.left
            if free <= 0 and len(unread) >= capacity(max(needed, 1)):
                break
        return unread[: capacity(max(needed, 1))]

    def put_prefix(self, read: Sequence[Waiting], prefix: Prefix) -> None:
        """Records the prefix and the row of each prefilled prompt."""
        for row, waiting in enumerate(read):
            waiting.prefix, waiting.row = prefix, row
