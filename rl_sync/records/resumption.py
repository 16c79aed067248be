"""Marks in a run's records: they show where the run resumed, and make some lines void.

A run resumes from a snapshot. Steps between the snapshot and the crash are repeated, and their
first records do not count. Their lines stay in the files, before the mark that makes them void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rl_sync.clock import now_secs
from rl_sync.records.json_lines import JsonObject

RESUMED_AT = "resumed_at"
"""The field of a mark: the trainer step that the run resumed from."""

SFT = "sft"
"""The field of a mark in SFT: the SFT step that the run resumed from."""


def mark(step: int, sft_step: int | None = None, **fields: object) -> JsonObject:
    """Makes the line that marks where a run resumes.

    Args:
      step: the trainer step, 0 in SFT.
      sft_step: the SFT step; None if SFT is over.
      fields: other fields of the line.
    """
    where = {RESUMED_AT: step} if sft_step is None else {RESUMED_AT: step, SFT: sft_step}
    return {"time": now_secs(), **where, **fields}


class StandingRecords:
    """The records that count, in order, without the marks; records are added as they come.

    Args:
      is_void: says whether a later mark makes a record void.
    """

    def __init__(self, is_void: Callable[[JsonObject, JsonObject], bool]):
        self._is_void = is_void
        self.records: list[JsonObject] = []

    def add(self, record: JsonObject) -> None:
        """Adds a record, or a mark that makes earlier records void."""
        if RESUMED_AT in record:
            self.records = [one for one in self.records if not self._is_void(one, record)]
        else:
            self.records.append(record)


def standing(
    records: Iterable[JsonObject], is_void: Callable[[JsonObject, JsonObject], bool]
) -> list[JsonObject]:
    """Returns the records that count; see `StandingRecords`."""
    stands = StandingRecords(is_void)
    for record in records:
        stands.add(record)
    return stands.records
