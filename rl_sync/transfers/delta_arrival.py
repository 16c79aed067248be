"""An explorer's end of transfers by differences: weights arrive while it generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rl_sync.cluster.session import Session
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import EndSite, ExplorerEnd
from rl_sync.types import Params
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.ends_interface import Puller
from rl_sync.weights.prefetching import PrefetchingPuller


def queue_rules(session: Session, schedule: SyncSchedule) -> QueueRules:
    """Returns the rules of the trainer's queue of versions, of which a thread makes artifacts."""
    return QueueRules(
        may_skip=schedule.pull == "latest",
        timeout_secs=session.settings.launch.wait_secs,
        agree=session.agree,
        agree_in_thread=session.team.thread("weights"),
    )


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

    @property
    def counts(self) -> dict[str, float]:
        """The same as totals of a run's metrics."""
        return {
            "weights/received_bytes": self.received_bytes,
            "weights/received_if_dense": self.dense_bytes,
            "weights/receive_secs": self.receive_secs,
            "weights/apply_secs": self.apply_secs,
            "weights/full_copies": float(self.full),
            "weights/refusals": float(self.refused),
        }


class CountingPuller:
    """Counts what each pull takes, for the metrics of the run.

    Args:
      puller: the puller of versions.
      stats: returns what the last pull took.
      count: adds to totals by name.
    """

    def __init__(
        self,
        puller: Puller,
        stats: Callable[[], PullStats | None],
        count: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._puller, self._stats, self._count = puller, stats, count

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """See `Puller`."""
        pulled = self._puller.pull(exactly=exactly, at_least=at_least, timeout_secs=timeout_secs)
        if (took := self._stats()) is not None:
            self._count(took.counts)
        return pulled

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `Puller`."""
        return self._puller.newest(at_least, timeout_secs)

    def close(self) -> None:
        """See `Puller`."""
        self._puller.close()


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
    puller = CountingPuller(puller, stats, session.spans.count)
    if settings.schedule.pull != "latest" or settings.explorer.processes > 1:
        return ExplorerEnd(puller)
    arriving = PrefetchingPuller(puller, record)
    return ExplorerEnd(arriving, at_hand=arriving.at_hand)
