"""The ends of a transfer inside the process that trainer and explorers share."""

from __future__ import annotations

from rl_sync.actors.events import VersionPublished
from rl_sync.processes.calls import Happened
from rl_sync.roles import number_of
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, ExplorerEnd, Offering, Site
from rl_sync.types import Params
from rl_sync.weights.local import LocalPublisher, LocalPuller


class LocalTrainerEnd(Offering):
    """Hands versions over to threads of the same process.

    Args:
      site: the trainer's.
      schedule: decides who waits.
    """

    def __init__(self, site: Site, schedule: SyncSchedule):
        super().__init__(site, schedule, _shared(site))

    def publish(self, version: int, params: Params) -> None:
        """See `TrainerEnd`; waits for nobody."""
        super().publish(version, params)
        self._session.call(Happened(VersionPublished(version)))


def _explorer(site: Site) -> ExplorerEnd:
    number = number_of(site.session.role)
    return ExplorerEnd(LocalPuller(_shared(site), site.like, number, check_digest=site.verify))


def _shared(site: Site) -> LocalPublisher:
    """The publisher that the ends of all roles know."""
    assert site.resources.weights is not None, "roles that share a process share a publisher"
    return site.resources.weights


ENDS = Ends(
    trainer=LocalTrainerEnd,
    explorer=_explorer,
    published_bytes=lambda version, schedule: version,
    arriving_bytes=lambda version: 0,
)
