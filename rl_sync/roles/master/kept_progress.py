"""Tokens of unfinished groups, which the master keeps in case their explorer dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from rl_sync.messages.events import LiveLease
from rl_sync.messages.master_calls import ToldProgress
from rl_sync.types import CompletionProgress


@dataclasses.dataclass
class KeptProgress:
    """Completions and episodes of unfinished groups so far, by the group's ordinal and their rows.

    Attributes:
      most_bytes: maximum bytes of all tokens; what does not fit is not kept.
    """

    most_bytes: int
    _rows: dict[int, dict[int, CompletionProgress]] = dataclasses.field(default_factory=dict)
    _bytes: int = 0

    def add(self, ordinal: int, told: ToldProgress) -> bool:
        """Adds tokens to a completion, or replaces it if it is told from its first token.

        An episode that has begun again is told from its first token: what was told before is
        dropped, even if there is no room for the new tokens.

        Returns:
          False if the tokens before are not known, and there is room for them.
        """
        part, before = told.progress, self._rows.get(ordinal, {}).get(told.row)
        known, known_bytes = (0, 0) if before is None else (len(before.tokens), before.nbytes)
        others_bytes = self._bytes - known_bytes
        if told.start > known:
            whole_bytes = part.nbytes * (told.start + len(part.tokens)) // max(1, len(part.tokens))
            return others_bytes + whole_bytes > self.most_bytes
        if 0 < told.start < known:
            return True  # It is told again, since the answer was lost.
        whole = before.joined(part) if before is not None and told.start else part
        if before is not None and not whole.follows(before):
            del self._rows[ordinal][told.row]
            self._bytes = others_bytes
        if others_bytes + whole.nbytes <= self.most_bytes:
            self._rows.setdefault(ordinal, {})[told.row] = whole
            self._bytes = others_bytes + whole.nbytes
        return True

    def take(
        self, told: Sequence[ToldProgress], live: Mapping[int, LiveLease]
    ) -> tuple[list[int], tuple[int, ...]]:
        """Adds tokens of unfinished groups; those of leases that have ended are passed over.

        Args:
          live: live leases by their ids.

        Returns:
          Leases whose groups are to be told from their first tokens; and leases whose groups are
          kept from now on.
        """
        lacking, leases = set[int](), dict[int, LiveLease]()
        for one in told:
            lease = live.get(one.lease_id)
            if lease is None or lease.buffered:
                continue
            leases[one.lease_id] = lease
            if not self.add(lease.ordinal, one):
                lacking.add(one.lease_id)
        new = (i for i, one in leases.items() if one.ordinal in self._rows and not one.is_kept)
        return sorted(lacking), tuple(sorted({*new} - lacking))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of(self, ordinal: int) -> tuple[tuple[int, CompletionProgress], ...]:
        """Returns the rows of a group that have tokens, in order."""
        return tuple(sorted(self._rows.get(ordinal, {}).items(), key=lambda item: item[0]))

    def keep_only(self, ordinals: Collection[int]) -> None:
        """Drops all groups but these."""
        for ordinal in self._rows.keys() - set(ordinals):
            rows = self._rows.pop(ordinal)
            self._bytes -= sum(progress.nbytes for progress in rows.values())
