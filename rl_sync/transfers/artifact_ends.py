"""Shared halves of the ends of both transfers by artifacts: their queue, costs and metrics."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rl_sync.cluster.session import Session
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import EndSite, ExplorerEnd, Offering
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.deltas.history import AddedVersion
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


class CostedPuller(Puller, Protocol):
    """A puller that knows the costs of its last pull; None if there was nothing to fetch."""

    stats: PullStats | None


def queue_rules(session: Session, schedule: SyncSchedule) -> QueueRules:
    """Returns the rules of the trainer's queue of versions, of which a thread makes artifacts."""
    return QueueRules(
        may_skip=schedule.pull == "latest",
        timeout_secs=session.settings.launch.wait_secs,
        agree=session.agree,
        agree_in_thread=session.team.thread("weights"),
    )


class ArtifactTrainerEnd(Offering):
    """A trainer's end that offers versions as artifacts, which a thread makes of them."""

    def _added(self, version: int, added: AddedVersion, secs: float) -> None:
        """Records a version that explorers can fetch now, and the seconds that this took."""
        session = self._session
        now = session.spans.now()
        attributes = added.attributes if session.settings.deltas else {}
        session.spans.record(
            self._kind, now - secs, now, version=version, background=True, **attributes
        )
        session.spans.count(added.counts)
        session.tell(Happened(VersionPublished(version)))


def arriving_end(site: EndSite, puller: CostedPuller) -> ExplorerEnd:
    """Returns an explorer's end, with weights that arrive in a thread if the schedule allows it.

    Under exact pulls an explorer waits for each version anyway. Several processes of one explorer
    compute digests together, which must not happen beside a rollout.

    Args:
      site: the explorer's site.
      puller: the puller of versions.
    """
    session = site.session

    def record(version: int, secs: float) -> None:
        now = session.spans.now()
        attributes = puller.stats._asdict() if puller.stats else {}
        session.spans.record(
            site.kind, now - secs, now, version=version, background=True, **attributes
        )

    settings = session.settings
    if settings.schedule.pull != "latest" or settings.explorer.processes > 1:
        return ExplorerEnd(puller)
    arriving = PrefetchingPuller(puller, record)
    return ExplorerEnd(arriving, at_hand=arriving.at_hand)
