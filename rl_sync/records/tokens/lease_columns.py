"""A number for each lease of a run, in a few bytes a lease, as lease ids are dense."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

_MOST_ROWS = 1 << 28
"""Leases with greater ids than any run has, as in damaged records, are left out."""

Rows = Int[np.ndarray, " leases"]


class LeaseColumn:
    """Numbers by lease id.

    Args:
      absent: the number of a lease that has none.
      kind: type code of the numbers; see `array.array`.

    Attributes:
      values: the numbers by lease id; `room` makes it long enough.
    """

    def __init__(self, absent: int = 0, kind: str = "i"):
        self._absent = array(kind, [absent])
        self.values = array(kind)

    def room(self, leases: Sequence[int]) -> Sequence[int]:
        """Makes room for leases; returns those that a run can have, which are mostly all."""
        if not leases:
            return leases
        greatest = max(leases)
        if min(leases) < 0 or greatest >= _MOST_ROWS:
            return self.room([lease for lease in leases if 0 <= lease < _MOST_ROWS])
        if (more := greatest + 1 - len(self.values)) > 0:
            self.values.extend(self._absent * more)
        return leases

    @property
    def rows(self) -> Rows:
        """The numbers of all leases from 0 on, as they are now."""
        return np.array(self.values)

    def of(self, leases: Rows) -> Rows:
        """Returns the numbers of leases."""
        values, absent = self.rows, self._absent[0]
        known = (leases >= 0) & (leases < len(values))
        found = np.full(len(leases), absent, values.dtype)
        found[known] = values[leases[known]]
        return found
