"""The ends of transfers by checkpoint: versions are saved in the background and restored."""

from __future__ import annotations

from rl_sync.actors.events import VersionPublished
from rl_sync.processes.calls import Happened
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, ExplorerEnd, Offering, Site
from rl_sync.weights.checkpoint import CheckpointPublisher, CheckpointPuller
from rl_sync.workdir import Workdir


class CheckpointTrainerEnd(Offering):
    """Saves versions in the background; explorers are told when one can be read.

    The parameters may be on their way still: they are copied on the device, and whoever saves the
    copy waits for it.

    Args:
      site: the trainer's.
      schedule: decides how many versions stay, and whether every one is needed.
    """

    def __init__(self, site: Site, schedule: SyncSchedule):
        session = site.session
        publisher = CheckpointPublisher(
            _directory(site),
            keep=schedule.versions_kept,
            may_skip=schedule.pull == "latest",
            timeout_secs=session.settings.launch.wait_secs,
            resume_from=schedule.start,
            on_saved=self._saved,
            processes=site.resources.processes,
            agree=session.agree,
            agree_saving=session.team.thread("weights"),
        )
        super().__init__(site, schedule, publisher)

    def _saved(self, version: int, secs: float) -> None:
        now = self._session.spans.now()
        self._session.spans.record(self._kind, now - secs, now, version=version, background=True)
        self._session.tell(Happened(VersionPublished(version)))


def _explorer(site: Site) -> ExplorerEnd:
    puller = CheckpointPuller(
        _directory(site),
        site.like,
        check_digest=site.verify,
        processes=site.resources.processes,
        agree=site.session.agree,
    )
    return ExplorerEnd(puller)


def _directory(site: Site) -> str:
    settings = site.session.settings
    return settings.weights_directory(Workdir(settings.workdir))


def _published_bytes(version: int, schedule: SyncSchedule) -> int:
    """The one that is saved, and the host's copy.

    Besides, if steps go on meanwhile, two that wait, and what is being written.
    """
    return (5 if schedule.pull == "latest" else 2) * version


ENDS = Ends(
    trainer=CheckpointTrainerEnd,
    explorer=_explorer,
    published_bytes=_published_bytes,
    arriving_bytes=lambda version: version,  # Files are read to the host first.
)
