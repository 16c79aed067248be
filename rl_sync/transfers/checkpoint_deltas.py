"""Checkpoint transfer by differences: full copies and differences as files, which explorers poll.

The trainer writes each version as its difference to the one before, and now and then as a full copy
(`rl_sync.weights.deltas.version_files`). An explorer reads the fewest bytes that lead from its
verified version to the one that it wants. If one is damaged, it takes another way, and asks for a
full copy where there is none.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket

from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.checkpoint_delta_publisher import DeltaFilesPublisher
from rl_sync.transfers.checkpoint_delta_puller import DeltaFilesPuller
from rl_sync.transfers.delta_arrival import arriving_end
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd, Offering
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.deltas.history import AddedVersion
from rl_sync.workdir import Workdir


def run_tag(secret: str) -> str:
    """Returns a tag of a run that does not show its secret."""
    return hashlib.sha256(f"weights {secret}".encode()).hexdigest()[:16]


class DeltaFilesTrainerEnd(Offering):
    """Writes versions in the background, and tells the master when each is readable.

    Args:
      site: the trainer's site.
      schedule: decides how many versions are kept, and whether every version is needed.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        session = site.session
        settings = session.settings
        publisher = DeltaFilesPublisher(
            settings.weights_directory(Workdir(settings.workdir)),
            site.abstract_params,
            run=run_tag(session.secret),
            chain=session.agree("the chain", lambda: secrets.token_hex(8)),
            expected=mesh_regions(site.abstract_params_on(settings.explorer_layout)),
            keep=schedule.versions_kept,
            full_every=settings.sync.full_every,
            on_saved=self._saved,
            frame=site.frame() if session.leads else None,
            may_skip=schedule.pull == "latest",
            timeout_secs=settings.launch.wait_secs,
            agree=session.agree,
            agree_saving=session.team.thread("weights"),
            agree_wishes=session.team.thread("wishes"),
        )
        super().__init__(site, schedule, publisher)

    def _saved(self, version: int, added: AddedVersion, secs: float) -> None:
        now = self._session.spans.now()
        self._session.spans.record(
            self._kind, now - secs, now, version=version, background=True, **added.attributes
        )
        self._session.spans.count(added.counts)
        self._session.tell(Happened(VersionPublished(version)))


def _explorer(site: EndSite) -> ExplorerEnd:
    session = site.session
    settings = session.settings
    puller = DeltaFilesPuller(
        settings.weights_directory(Workdir(settings.workdir)),
        site.abstract_params,
        run=run_tag(session.secret),
        reader=f"{session.role}.{socket.gethostname()}-{os.getpid()}",
        agree=session.agree,
    )
    return arriving_end(site, puller, lambda: puller.stats)


ENDS = Ends(
    trainer=DeltaFilesTrainerEnd,
    explorer=_explorer,
    # The version that is encoded, its base, the next one that waits, and what is written.
    published_bytes=lambda version, schedule: (5 if schedule.pull == "latest" else 4) * version,
    # The bytes of its parts, the blocks, and a version that has arrived and is not in use yet.
    arriving_bytes=lambda version: 3 * version,
)
