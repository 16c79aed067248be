"""Requests of which completions are still to be started, and their prompts that were read."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from rl_sync.rollout.request import Request
from rl_sync.rollout.slots import Prefix


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request of which completions are to be started, from number `next` on.

    Attributes:
      ticket: its number.
      request: what is asked for.
      seed: the request's own, or the one that it was given.
      prefix, row: where its prompt was read.
    """

    ticket: int
    request: Request
    seed: tuple[int, ...]
    next: int = 0
    prefix: Prefix | None = None
    row: int = 0

    @property
    def left(self) -> int:
        """Completions to be started."""
        return self.request.completions - self.next


class Queue:
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def completions(self) -> int:
        """How many are to be started."""
        return sum(waiting.left for waiting in self._waiting)

    @property
    def most_new_tokens(self) -> int:
        """The most tokens that one of them may get; 0 when there is none."""
        return max((w.request.sampling.max_new_tokens for w in self._waiting), default=0)

    @property
    def head(self) -> Waiting:
        """The next to be started."""
        return self._waiting[0]

    def append(self, waiting: Waiting) -> None:
        """Puts a request at the end."""
        self._waiting.append(waiting)

    def drop_finished_head(self) -> None:
        """Takes the next one out if nothing of it is left."""
        if not self.head.left:
            self._waiting.popleft()

    def forget_prefixes(self) -> None:
        """Has all prompts read again: they were read with other weights."""
        for waiting in self._waiting:
            waiting.prefix = None

    def unread(
        self, free: int, alike: Callable[[Request], bool], capacity: Callable[[int], int]
    ) -> Sequence[Waiting]:
        """The requests whose prompts are to be read now, in order; the head is the first.

        Args:
          free: slots to be filled. Only what they need is a reason to read, but where a batch has
            rows to spare, those that come later get them.
          alike: whether a prompt is read in the same batch as the head's.
          capacity: from how many prompts there are to how many rows a batch has for them.
        """
        needed, unread = 0, []
        for waiting in self._waiting:
            if waiting.prefix is None and alike(waiting.request):
                needed += free > 0
                unread.append(waiting)
            free -= waiting.left
            if free <= 0 and len(unread) >= capacity(max(needed, 1)):
                break
        return unread[: capacity(max(needed, 1))]

    def put_prefix(self, read: Sequence[Waiting], prefix: Prefix) -> None:
        """Takes note of where prompts were read."""
        for row, waiting in enumerate(read):
            waiting.prefix, waiting.row = prefix, row
