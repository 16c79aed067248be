"""Tables of a replay buffer: their specifications for the server, and its reports."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Literal, get_args

Selector = Literal["fifo", "lifo", "uniform", "prioritized", "max_heap", "min_heap"]
UNLIMITED = sys.float_info.max


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """Specification of a table: selection of items, size, and rate limiter.

    The rate limiter is Reverb's. With d = inserts · samples_per_insert − samples, an insert must
    keep d ≤ max_diff (unless the table is still filling up to `min_size_to_sample`), and a sample
    must keep d ≥ min_diff; a sample also waits until the table holds `min_size_to_sample` items.

    Attributes:
      name: a name that is unique on a server.
      max_size: maximum number of items; an insert into a full table removes the oldest.
      sampler: selector of the sampled item. `prioritized` samples in proportion to priority **
        priority_exponent.
      max_times_sampled: number of samples after which an item is removed; 0 for no limit.
      min_size_to_sample, samples_per_insert, min_diff, max_diff: the rate limiter.
      priority_exponent: the exponent of `prioritized`.

    Raises:
      ValueError: a value is not valid, or callers would wait forever.
    """

    name: str
    max_size: int
    sampler: Selector = "fifo"
    max_times_sampled: int = 0
    min_size_to_sample: int = 1
    samples_per_insert: float = 1.0
    min_diff: float = -UNLIMITED
    max_diff: float = UNLIMITED
    priority_exponent: float = 1.0

    def __post_init__(self) -> None:
        def refuse(field: str, rule: str) -> None:
            raise ValueError(
                f"Replay table {self.name!r}: {field}={getattr(self, field)!r}, but {rule}."
            )

        if not self.name or not isinstance(self.name, str):
            refuse("name", "a table needs a name")
        if self.sampler not in get_args(Selector):
            refuse("sampler", f"it is one of {', '.join(get_args(Selector))}")
        if self.max_size < 1:
            refuse("max_size", "a table holds at least 1 item")
        if self.max_times_sampled < 0:
            refuse("max_times_sampled", "it is at least 1, or 0 for no limit")
        if not 1 <= self.min_size_to_sample <= self.max_size:
            refuse(
                "min_size_to_sample",
                f"it is at least 1 and at most max_size={self.max_size}, or samplers would wait"
                " for ever",
            )
        if not self.samples_per_insert > 0:
            refuse("samples_per_insert", "it is above 0")
        if self.max_diff - self.min_diff < max(1.0, self.samples_per_insert):
            refuse(
                "max_diff",
                f"it is at least min_diff={self.min_diff} + max(1, samples_per_insert), or both"
                " sides would wait for ever",
            )
        if not (math.isfinite(self.priority_exponent) and self.priority_exponent >= 0):
            refuse("priority_exponent", "it is at least 0")


def queue(name: str, capacity: int, sampler: Selector = "fifo", times: int = 1) -> TableSpec:
    """Specifies a queue, which gives each item `times` times, and makes writers wait when full.

    It is full when `capacity * times` samples are left in it. It never removes an item to make room
    for another.

    Args:
      sampler: selector of items; first in, first out by default.
    """
    draws = capacity * times
    return TableSpec(
        name,
        max_size=draws,
        sampler=sampler,
        max_times_sampled=times,
        samples_per_insert=float(times),
        min_diff=0.0,
        max_diff=float(draws),
    )


def to_json(tables: Sequence[TableSpec]) -> str:
    """Writes tables as the `--tables` argument of a server."""
    return json.dumps([dataclasses.asdict(table) for table in tables])


def from_json(text: str) -> list[TableSpec]:
    """Inverts `to_json`.

    Raises:
      ValueError: the text is not a list of tables, a field is unknown or missing, or two tables
        have the same name.
    """
    rows: object = json.loads(text)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"A replay buffer needs a JSON list of one table or more, not {text!r}.")
    try:
        tables = [TableSpec(**row) for row in rows]
    except TypeError as error:
        fields = ", ".join(field.name for field in dataclasses.fields(TableSpec))
        raise ValueError(f"A replay table has the fields {fields}: {error}.") from error
    check_names(tables)
    return tables


def check_names(tables: Sequence[TableSpec]) -> None:
    """Raises ValueError unless there is a table, and no two have the same name."""
    names = [table.name for table in tables]
    if not names:
        raise ValueError("A replay buffer needs at least one table.")
    if len(set(names)) < len(names):
        raise ValueError(f"Replay tables need different names, not {', '.join(names)}.")


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """The state of one table, as its server reports it.

    Attributes:
      name, max_size, sampler, max_times_sampled, min_size_to_sample: as in `TableSpec`.
      current_size: number of items in the table.
      num_inserted: number of items inserted so far.
      num_sampled: number of samples so far.
    """

    name: str
    max_size: int
    sampler: str
    max_times_sampled: int
    min_size_to_sample: int
    current_size: int
    num_inserted: int
    num_sampled: int
