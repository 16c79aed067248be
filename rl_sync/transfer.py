"""The transfers of weights: their names, what each needs, and the colours of its spans.

A transfer is a line of `TRANSFERS` and a module of the same name in `rl_sync.transfers`.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A way for weights to travel from the trainer to the explorers.

    Attributes:
      colour: of its spans in the timeline.
      style: of its spans in the live display, as rich calls it.
      trace_colour: of its spans in the trace, as Chrome calls it.
      is_joint: whether trainer and explorers form one cluster and enter each transfer together.
        In one process weights are handed over instead.
      needs_processes: whether the roles must be in processes of their own.
      fallback: the transfer that takes over where this one cannot be had; empty for one that
        always can.
      has_directory: whether versions may go to `sync.directory`.
    """

    colour: str
    style: str
    trace_colour: str
    is_joint: bool = False
    needs_processes: bool = False
    fallback: str = ""
    has_directory: bool = False


TRANSFERS: dict[str, Transfer] = {
    "collective": Transfer("#8E4EC6", "magenta", "detailed_memory_dump", is_joint=True),
    "checkpoint": Transfer("#D9383A", "red", "terrible", has_directory=True),
    "server": Transfer(
        "#E8710A",
        "dark_orange",
        "bad",
        needs_processes=True,
        fallback="checkpoint",
        has_directory=True,
    ),
}
