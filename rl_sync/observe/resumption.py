"""Marks in a run's records of where it went on, and what they make void.

A run goes on from a snapshot. What came after it, before a crash, is done again, and what was
recorded of it does not count. Its lines stay in the files, before the mark that makes them void.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

RESUMED_AT = "resumed_at"
"""The field of a mark: the trainer step that the run went on from."""

WARM_UP = "warm_up"
"""The field of a mark in a warm-up: the warm-up step that the run went on from."""

Record = dict[str, Any]


def mark(step: int, warm_up: int | None = None, **fields: Any) -> Record:
    """The line that says where a run goes on.

    Args:
      step: the trainer step, 0 in the warm-up.
      warm_up: the warm-up step, None where the warm-up is over.
      fields: what else the line says.
    """
    where = {RESUMED_AT: step} if warm_up is None else {RESUMED_AT: step, WARM_UP: warm_up}
    return {"time": time.time(), **where, **fields}


def standing(records: Iterable[Record], is_void: Callable[[Record, Record], bool]) -> list[Record]:
    """The records that count, in their order, without the marks.

    Args:
      is_void: whether a record does not count any more after a mark.
    """
    stands: list[Record] = []
    for record in records:
        if RESUMED_AT in record:
            stands = [one for one in stands if not is_void(one, record)]
        else:
            stands.append(record)
    return stands
