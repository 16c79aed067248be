"""Weight transfers: their names, their requirements, and the colours of their spans.

A transfer is a line of `TRANSFERS` and a module of the same name in `rl_sync.transfers`.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A way to move weights from the trainer to the explorers.

    Attributes:
      colour: colour of its spans in the timeline.
      style: style of its spans in the live display, in rich's notation.
      trace_colour: colour of its spans in the trace, in Chrome's names.
      is_joint: whether trainer and explorers form one cluster and enter each transfer together.
        Within one process, weights are handed over instead.
      needs_processes: whether each role must have a process of its own.
      fallback: transfer to use where this one is unavailable; empty for one that is always
        available.
      has_deltas: whether it can send what changed since the version that an explorer has.
      has_directory: whether versions may be stored in `sync.directory`.
    """

    colour: str
    style: str
    trace_colour: str
    is_joint: bool = False
    needs_processes: bool = False
    fallback: str = ""
    has_deltas: bool = False
    has_directory: bool = False


TRANSFERS: dict[str, Transfer] = {
    "collective": Transfer("#8E4EC6", "magenta", "detailed_memory_dump", is_joint=True),
    "checkpoint": Transfer("#D9383A", "red", "terrible", has_deltas=True, has_directory=True),
    "server": Transfer(
        "#E8710A",
        "dark_orange",
        "bad",
        needs_processes=True,
        fallback="checkpoint",
        has_deltas=True,
        has_directory=True,
    ),
}
