"""Point-to-point transfer: the trainer offers parts of each version, and explorers fetch them.

Trainer and explorers are independent JAX programs. Each process of the trainer offers the parts
that its own devices hold; an explorer's process requests the parts that it needs from each of them.
Neither side waits for the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
from jaxtyping import Array

from rl_sync.addresses import interface_towards
from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.messages.call import Call
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.weight_calls import AskNewest, HoldWeights
from rl_sync.role_names import TRAINER
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd, Offering
from rl_sync.transfers.server_deltas import DeltaTrainerEnd, explorer_end
from rl_sync.transfers.server_publisher import (
    AskManifest,
    AskOffer,
    CloseLine,
    OpenLine,
    ServerPublisher,
    Taken,
    VersionOffer,
)
from rl_sync.transfers.trainer_processes import await_holders, check_training
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.digest import LeafSums, combine, leaf_sums, to_text
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.parts import Arrivals, first_difference, leaves_of
from rl_sync.weights.server_transport import start_server, wait_ready

_SLICE_SECS = 1.0
_log = logging.getLogger(__name__)

R = TypeVar("R")


class _Source(NamedTuple):
    """Connection to one process of the trainer.

    Attributes:
      name: name of the process, for errors.
      client: calls its publisher.
      connection: connection to its transfer server.
      parts: parts that are fetched from it.
    """

    name: str
    client: RpcClient
    connection: Any
    parts: list[int]


class ServerPuller:
    """Fetches versions from a trainer's processes into the explorer's own sharding.

    Each process of an explorer has a puller, which fetches the shards of its own devices. All of
    them call `pull` with the same arguments.

    Args:
      params: abstract params in the shardings to pull into.
      reader: name that no other running puller of the trainer has.
      find: finds the publishers of the trainer's processes, by their index; called again after a
        failure. If it raises a ConnectionError, the pull fails.
      newest: returns the newest offered version, -1 if there is none. Its arguments are the version
        to wait for, and the maximum wait in seconds.
      host: this process's own interface.
      call_secs: maximum time that a publisher takes to answer, beyond the wait that it is asked
        for.
      check_digest: whether to compare the digest of the received weights with the published one.
      agree: lets the explorer's processes agree; the first of them chooses the version.
      stall_secs: time after which a transfer without progress is given up.
      on_lost: called when a pull breaks; it may raise the reason, in place of the pull's error.

    Raises:
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        params: Params,
        reader: str,
        find: Callable[[], Sequence[RpcClient]],
        newest: Callable[[int, float], int],
        *,
        host: str,
        call_secs: float,
        check_digest: bool = True,
        agree: Agree = alone,
        stall_secs: float = 60.0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._params, self._reader = params, reader
        self._find, self._newest = find, newest
        self._server = start_server(host)
        self._call_secs = call_secs
        self._check_digest = check_digest
        self._agree = agree
        self._stall_secs = stall_secs
        self._on_lost = on_lost
        self._sources: list[_Source] = []
        self._arrivals: Arrivals | None = None

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and fetches it; see `ends_interface.Puller`.

        The deadline applies to the offer; a transfer that makes progress may take longer. After an
        error the next pull connects again.

        Raises:
          WeightsTimeoutError: no such version was offered in time.
          WeightsMismatchError: the received weights differ from the published ones.
          WeightsTransferError: the trainer is gone, or is stuck.
          ValueError: the trainer offers another model than `params`.
        """
        wanted = wanted_text(exactly, at_least)
        deadline = time.monotonic() + timeout_secs
        try:
            while not (offers := self._offers(exactly, at_least, deadline)):
                if self._agree("late", lambda: time.monotonic() >= deadline):
                    raise WeightsTimeoutError(
                        f"{self._reader} waited {timeout_secs:.1f} s for {wanted} of the weights;"
                        f" the newest that the trainer offers is {self.newest()}. Either the"
                        " trainer is slower than the deadline, or it has stopped."
                    )
            params, received = self._fetched(offers)
            published = [self._call(of, Taken(self._reader)) for of in self._sources]
        except (ConnectionError, PeerLostError, RemoteError, WeightsTransferError) as error:
            self._arrivals = None
            self._on_lost()
            if isinstance(error, WeightsTransferError):
                raise
            raise WeightsTransferError(
                f"{self._reader} wanted {wanted} of the weights, but the trainer does not answer:"
                f" {error}"
            ) from error
        if self._check_digest and received != published[0]:
            raise WeightsMismatchError(offers[0].version, published[0], received)
        return offers[0].version, params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer, if it is still there, that this process will not ask again."""
        for source in self._sources:
            try:
                self._call(source, CloseLine(self._reader))
            except (PeerLostError, RemoteError):
                _log.info("The trainer had left before this explorer did.")
        self._sources, self._arrivals = [], None

    def _call(self, source: _Source, call: Call[R], waits_secs: float = 0.0) -> R:
        return source.client.call(call, self._call_secs + waits_secs)

    def _offers(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[VersionOffer] | None:
        """Asks each of the trainer's processes for an offer; None if there is none yet."""
        mine: list[VersionOffer] = []

        def choose() -> int | None:
            mine.extend(self._ask(exactly, at_least, deadline) or [])
            return mine[0].version if mine else None

        version = self._agree("a version", choose)
        if version is None or mine:
            return mine
        offers = self._ask(version, None, time.monotonic() + self._stall_secs)
        if offers is None:
            raise WeightsTransferError(
                f"Process 0 of this explorer got an offer of version {version}, but"
                f" {self._reader} did not."
            )
        return offers

    def _ask(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[VersionOffer] | None:
        """Asks each process for an offer of one version; None if there is none at present."""
        if self._arrivals is None:
            self._connect()
        offers: list[VersionOffer] = []
        for source in self._sources:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            call = AskOffer(self._reader, source.parts, exactly, at_least, left)
            if (offer := self._call(source, call, left)) is None:
                return None
            offers.append(offer)
            exactly, at_least = offers[0].version, None
        return offers

    def _connect(self) -> None:
        """Opens a line to each of the trainer's processes that holds parts for this process."""
        clients = self._find()
        manifest = clients[0].call(AskManifest(), self._call_secs)
        if (pair := first_difference(leaves_of(self._params), manifest.leaves)) is not None:
            raise ValueError(
                f"The trainer offers {pair[1]} where this explorer has {pair[0]}: start both with"
                " the same model and the same explorer.dtype."
            )
        arrivals = Arrivals(self._params, manifest)
        by_holder: dict[int, list[int]] = {}
        for part in arrivals.wanted:
            by_holder.setdefault(manifest.parts[part].holder, []).append(part)
        self._sources = []
        for index, parts in sorted(by_holder.items()):
            address = clients[index].call(OpenLine(self._reader), self._call_secs)
            name = f"process {index} of the trainer at {address}"
            self._sources.append(
                _Source(name, clients[index], self._server.connect(address), parts)
            )
        self._arrivals = arrivals

    def _fetched(self, offers: Sequence[VersionOffer]) -> tuple[Params, str]:
        """Fetches the parameters, and their digest if it is to be checked."""
        assert self._arrivals is not None
        arriving: dict[int, tuple[Array, str]] = {}
        for source, offer in zip(self._sources, offers, strict=True):
            wanted = [self._arrivals.wanted[part] for part in source.parts]
            arrays = source.connection.pull(offer.uuid, wanted)
            name = f"{source.name} (version {offer.version})"
            arriving |= {p: (x, name) for p, x in zip(source.parts, arrays, strict=True)}

        def arrive(part: int) -> Array:
            array, name = arriving.pop(part)
            wait_ready(array, self._stall_secs, name)
            return array

        # All processes of an explorer compute the digest together, so at its end each has all its
        # parts. Until then the version is kept for them.
        checked = self._check_digest or jax.process_count() > 1
        leaves: list[Array] = []
        sums: list[LeafSums] = []
        for leaf in self._arrivals.assembled(arrive):
            leaves.append(leaf)
            if checked:
                sums.append(leaf_sums(leaf))
        params = jax.tree.unflatten(jax.tree.structure(self._params), leaves)
        return params, to_text(combine(params, sums)) if checked else ""


class ServerTrainerEnd(Offering):
    """Cuts versions on the devices and offers them; explorers fetch them at any time.

    Args:
      site: the trainer's site.
      schedule: decides how many versions are offered.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        session = site.session
        publisher = ServerPublisher(
            site.abstract_params,
            host=interface_towards(site.master_address),
            secret=session.secret,
            expected=mesh_regions(site.abstract_params_on(session.settings.explorer_layout)),
            keep=schedule.versions_in_use,
            on_ready=lambda version: session.tell(Happened(VersionPublished(version))),
        )
        super().__init__(site, schedule, publisher)
        session.call_alone(HoldWeights(jax.process_index(), publisher.address))


def puller_of(site: EndSite) -> ServerPuller:
    """Makes an explorer's puller.

    A pull raises a `RunStoppedError` if it breaks because the run is being stopped, or because the
    trainer has made its last step.
    """
    session = site.session

    def find() -> list[RpcClient]:
        return [RpcClient(at, TRAINER, session.secret) for at in await_holders(session)]

    return ServerPuller(
        site.abstract_params,
        f"{session.role}.{jax.process_index()}",
        find,
        lambda version, secs: session.call(AskNewest(version, secs)),
        host=interface_towards(site.master_address),
        call_secs=session.settings.launch.call_secs,
        check_digest=site.verify,
        agree=session.agree,
        on_lost=lambda: check_training(session),
    )


def _try_out(master_address: str) -> None:
    start_server(interface_towards(master_address))


def _trainer(site: EndSite, schedule: SyncSchedule) -> Offering:
    end = DeltaTrainerEnd if site.session.settings.deltas else ServerTrainerEnd
    return end(site, schedule)


def _explorer(site: EndSite) -> ExplorerEnd:
    if site.session.settings.deltas:
        return explorer_end(site)
    return ExplorerEnd(puller_of(site))


ENDS = Ends(
    trainer=_trainer,
    explorer=_explorer,
    # With differences also the version that is encoded, and differences up to a full copy.
    published_bytes=lambda version, schedule, deltas: (
        (schedule.versions_in_use + (2 if deltas else 0)) * version
    ),
    # Whole: parts before their assembly. With differences: the bytes of its parts, the blocks, and
    # a version that has arrived and is not in use yet.
    arriving_bytes=lambda version, deltas: 3 * version if deltas else version // 2,
    try_out=_try_out,
)
