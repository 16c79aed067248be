"""An explorer's end of transfers by differences: weights arrive while it generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rl_sync.transfers.ends import EndSite, ExplorerEnd
from rl_sync.weights.ends_interface import Puller
from rl_sync.weights.prefetching import PrefetchingPuller


class PullStats(NamedTuple):
    """Costs of the last pull.

    Attributes:
      received_bytes: bytes of the blocks.
      dense_bytes: bytes of the parts that they make.
      receive_secs, apply_secs: time of the fetch, and of applying and verifying.
      full: whether it was a full copy.
      refused: whether a first attempt was refused, by its digest or a damaged block.
    """

    received_bytes: int
    dense_bytes: int
    receive_secs: float
    apply_secs: float
    full: bool
    refused: bool


def arriving_end(
    site: EndSite, puller: Puller, stats: Callable[[], PullStats | None]
) -> ExplorerEnd:
    """Returns an explorer's end, with weights that arrive in a thread if the schedule allows it.

    Under exact pulls an explorer waits for each version anyway. Several processes of one explorer
    compute digests together, which must not happen beside a rollout.

    Args:
      site: the explorer's site.
      puller: the puller of versions.
      stats: returns what the last pull took.
    """
    session = site.session

    def record(version: int, secs: float) -> None:
        now, took = session.spans.now(), stats()
        attributes = took._asdict() if took else {}
        session.spans.record(
            site.kind, now - secs, now, version=version, background=True, **attributes
        )

    settings = session.settings
    if settings.schedule.pull != "latest" or settings.explorer.processes > 1:
        return ExplorerEnd(puller)
    arriving = PrefetchingPuller(puller, record)
    return ExplorerEnd(arriving, at_hand=arriving.at_hand)
