"""The ends of point-to-point transfers: the trainer's processes serve, and explorers fetch."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, TypeVar

import jax

from rl_sync.actors.events import VersionPublished
from rl_sync.processes.calls import AskStatus, Happened
from rl_sync.processes.ports import interface_towards
from rl_sync.processes.rpc import Call, Desk, PeerLostError, RemoteError, RpcClient, RpcServer
from rl_sync.processes.session import RunStoppedError
from rl_sync.processes.weight_calls import AskHolders, AskNewest, HoldWeights
from rl_sync.roles import TRAINER
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, ExplorerEnd, Offering, Site
from rl_sync.types import Params
from rl_sync.weights.interface import WeightsTransferError
from rl_sync.weights.regions import mesh_regions
from rl_sync.weights.server_holder import Holder
from rl_sync.weights.server_publisher import ServerPublisher
from rl_sync.weights.server_puller import ServerPuller
from rl_sync.weights.server_transport import start_server

_POLL_SECS = 0.1
_THREADS = 64
_log = logging.getLogger(__name__)

R = TypeVar("R")


class ServerTrainerEnd(Offering):
    """Cuts versions on the devices and offers them; explorers fetch them when they like.

    Args:
      site: the trainer's.
      schedule: decides how many versions are offered.
    """

    def __init__(self, site: Site, schedule: SyncSchedule):
        session, host = site.session, interface_towards(site.master_address)
        publisher = ServerPublisher(
            site.like,
            host=host,
            expected=mesh_regions(site.like_on(session.settings.explorer_layout)),
            keep=schedule.versions_in_use,
            on_ready=lambda version: session.tell(Happened(VersionPublished(version))),
        )
        super().__init__(site, schedule, publisher)
        self._server = HolderServer(publisher, host, session.secret)
        session.call_alone(HoldWeights(jax.process_index(), self._server.address))

    def close(self) -> None:
        """See `TrainerEnd`; what is still being fetched has no use any more."""
        super().close()
        self._server.close()


@dataclasses.dataclass(frozen=True)
class AskManifest(Call[list[Any]]):
    """See `Holder.manifest`."""


@dataclasses.dataclass(frozen=True)
class OpenLine(Call[str]):
    """See `Holder.open`."""

    reader: str


@dataclasses.dataclass(frozen=True)
class AskOffer(Call[list[Any] | None]):
    """See `Holder.offer`."""

    reader: str
    parts: list[int]
    exactly: int | None
    at_least: int | None
    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class Taken(Call[str]):
    """See `Holder.taken`."""

    reader: str


@dataclasses.dataclass(frozen=True)
class CloseLine(Call[None]):
    """See `Holder.close_line`."""

    reader: str


class HolderServer:
    """Offers one trainer process's weights to remote callers.

    Args:
      holder: whose methods are called.
      host: the interface to listen on.
      secret: the run's.
    """

    def __init__(self, holder: Holder, host: str, secret: str):
        desk = Desk(
            AskManifest.answered_by(lambda call: holder.manifest()),
            OpenLine.answered_by(lambda call: holder.open(call.reader)),
            AskOffer.answered_by(
                lambda call: holder.offer(
                    reader=call.reader,
                    parts=call.parts,
                    exactly=call.exactly,
                    at_least=call.at_least,
                    timeout_secs=call.timeout_secs,
                )
            ),
            Taken.answered_by(lambda call: holder.taken(call.reader)),
            CloseLine.answered_by(lambda call: holder.close_line(call.reader)),
        )
        self._server = RpcServer(desk, 0, host, _THREADS, secret)
        self.address = f"{host}:{self._server.port}"

    def close(self) -> None:
        """Stops answering."""
        self._server.close()


class RemoteHolder:
    """A trainer process, called over the network; see `Holder`.

    Args:
      address: of its `HolderServer`.
      call_secs: the longest that it takes to answer, besides what it is asked to wait.
      secret: the run's.
    """

    def __init__(self, address: str, call_secs: float, secret: str):
        self._client = RpcClient(address, TRAINER, secret)
        self._call_secs = call_secs

    def manifest(self) -> list[Any]:
        """See `Holder`."""
        return self._call(AskManifest())

    def open(self, reader: str) -> str:
        """See `Holder`."""
        return self._call(OpenLine(reader))

    def offer(
        self,
        reader: str,
        parts: list[int],
        exactly: int | None,
        at_least: int | None,
        timeout_secs: float,
    ) -> list[Any] | None:
        """See `Holder`."""
        return self._call(AskOffer(reader, parts, exactly, at_least, timeout_secs), timeout_secs)

    def taken(self, reader: str) -> str:
        """See `Holder`."""
        return self._call(Taken(reader))

    def close_line(self, reader: str) -> None:
        """See `Holder`."""
        self._call(CloseLine(reader))

    def _call(self, call: Call[R], waits_secs: float = 0.0) -> R:
        try:
            return self._client.call(call, self._call_secs + waits_secs)
        except (PeerLostError, RemoteError) as error:
            raise ConnectionError(str(error)) from error


class ServedPuller:
    """Pulls what the trainer's processes serve, until the trainer has finished.

    Args:
      site: the explorer's.
    """

    def __init__(self, site: Site):
        self._session = session = site.session
        self._puller = ServerPuller(
            site.like,
            f"{session.role}.{jax.process_index()}",
            self._find_holders,
            lambda version, secs: session.call(AskNewest(version, secs)),
            host=interface_towards(site.master_address),
            check_digest=site.verify,
            agree=session.agree,
        )

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """See `rl_sync.weights.interface.Puller`.

        Raises:
          RunStoppedError: the run is being stopped, or the trainer has made its last step.
        """
        try:
            return self._puller.pull(exactly=exactly, at_least=at_least, timeout_secs=timeout_secs)
        except WeightsTransferError:
            self._session.check()
            if self._session.call(AskStatus()).phase == "end":
                raise RunStoppedError("the trainer has finished") from None
            raise

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `rl_sync.weights.interface.Puller`."""
        return self._puller.newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer, if it is still there."""
        try:
            self._puller.close()
        except ConnectionError:
            _log.info("The trainer had left before this explorer did.")

    def _find_holders(self) -> list[RemoteHolder]:
        """All processes of the trainer.

        Raises:
          ConnectionError: some of them serve nothing, and have had time to.
        """
        settings = self._session.settings
        deadline = time.monotonic() + settings.launch.call_secs
        while len(addresses := self._session.call_alone(AskHolders())) < settings.trainer.processes:
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"{len(addresses)} of the trainer's {settings.trainer.processes} processes"
                    f" serve weights after {settings.launch.call_secs:g} s"
                )
            time.sleep(_POLL_SECS)
        call_secs, secret = settings.launch.call_secs, self._session.secret
        return [RemoteHolder(address, call_secs, secret) for address in addresses]


def _try_out(master_address: str) -> None:
    start_server(interface_towards(master_address))


ENDS = Ends(
    trainer=ServerTrainerEnd,
    explorer=lambda site: ExplorerEnd(ServedPuller(site)),
    published_bytes=lambda version, schedule: schedule.versions_in_use * version,
    arriving_bytes=lambda version: version // 2,  # Parts before their assembly.
    try_out=_try_out,
)
