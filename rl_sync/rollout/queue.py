"""Queue of requests whose completions have not all started, and their prefilled prompts."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from rl_sync.rollout.kv_offload import OffloadedCache
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.slots import Prefix


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request with completions to start, beginning with number `next`.

    Attributes:
      ticket: number of the request.
      request: the request itself.
      seed: the request's own seed, or a seed from the engine.
      prefix, row: its prefilled prompt and the row in it; None and 0 before the prefill.
      given, copy: for a held sequence with an offloaded cache: the number of prompt tokens that
        follow the sequence, and its cache.
    """

    ticket: int
    request: CompletionRequest
    seed: tuple[int, ...]
    next: int = 0
    prefix: Prefix | None = None
    row: int = 0
    given: int = 0
    copy: OffloadedCache | None = None

    @property
    def left(self) -> int:
        """Number of completions to start."""
        return self.request.completions - self.next

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

    def drop_finished_head(self) -> None:
        """Removes the next request if all of its completions are started."""
        if not self.head.left:
            self._waiting.popleft()
            self._ahead = max(0, self._ahead - 1)

    def forget_prefixes(self) -> None:
        """Drops all prefixes, which older weights computed; the prompts are prefilled again."""
        for waiting in self._waiting:
            waiting.prefix = None

    def unread(
        self, free: int, alike: Callable[[CompletionRequest], bool], capacity: Callable[[int], int]
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
            if waiting.prefix is None and not waiting.is_aside and alike(waiting.request):
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
