"""Point-to-point transfer: the trainer offers parts of each version, and explorers fetch them.

Trainer and explorers are independent JAX programs. Each process of the trainer offers the parts
that its own devices hold; an explorer's process requests the parts that it needs from each of them.
Neither side waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
from jaxtyping import Array

from rl_sync.addresses import interface_towards
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.weight_calls import AskNewest, HoldWeights
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd, Offering
from rl_sync.transfers.server_deltas import DeltaTrainerEnd, explorer_end
from rl_sync.transfers.server_publisher import (
    AskOffer,
    OpenLine,
    ServerPublisher,
    Taken,
    VersionOffer,
)
from rl_sync.transfers.server_puller import OfferPuller
from rl_sync.transfers.trainer_processes import TrainerContact, contact
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.digest import LeafSums, combine, leaf_sums, to_text
from rl_sync.weights.ends_interface import WeightsMismatchError
from rl_sync.weights.parts import Manifest
from rl_sync.weights.server_transport import start_server, wait_ready

if TYPE_CHECKING:
    from jax.experimental.transfer import TransferConnection


class _TrainerLine(NamedTuple):
    """Connection to the transfer server of one process of the trainer, and its name for errors."""

    name: str
    connection: TransferConnection


class ServerPuller(OfferPuller[VersionOffer]):
    """Fetches whole versions from device to device.

    Args:
      params, trainer, agree: see `OfferPuller`.
      host: this process's own interface.
      check_digest: whether to compare the digest of the received weights with the published one.

    Raises:
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        params: Params,
        trainer: TrainerContact,
        *,
        host: str,
        check_digest: bool = True,
        agree: Agree = alone,
    ) -> None:
        super().__init__(params, trainer, agree=agree)
        self._server = start_server(host)
        self._check_digest = check_digest
        self._lines: dict[int, _TrainerLine] = {}

    def _asking(
        self, holder: int, exactly: int | None, at_least: int | None, secs: float
    ) -> AskOffer:
        return AskOffer(self._reader, self._by_holder[holder], exactly, at_least, secs)

    def _version_of(self, offer: VersionOffer) -> int:
        return offer.version

    def _connected(self, manifest: Manifest) -> None:
        self._lines = {}
        for holder in self._by_holder:
            address = self._call(holder, OpenLine(self._reader))
            name = f"process {holder} of the trainer at {address}"
            self._lines[holder] = _TrainerLine(name, self._server.connect(address))

    def _received(
        self, offers: Mapping[int, VersionOffer], exactly: int | None
    ) -> tuple[int, Params]:
        params, received = self._fetched(offers)
        published = [self._call(holder, Taken(self._reader)) for holder in offers]
        version = next(iter(offers.values())).version
        if self._check_digest and received != published[0]:
            raise WeightsMismatchError(version, published[0], received)
        return version, params

    def _fetched(self, offers: Mapping[int, VersionOffer]) -> tuple[Params, str]:
        """Fetches the parameters, and their digest if it is to be checked."""
        assert self._arrivals is not None
        arriving: dict[int, tuple[Array, str]] = {}
        for holder, offer in offers.items():
            parts, line = self._by_holder[holder], self._lines[holder]
            wanted = [self._arrivals.wanted[part] for part in parts]
            arrays = line.connection.pull(offer.uuid, wanted)
            name = f"{line.name} (version {offer.version})"
            arriving |= {p: (x, name) for p, x in zip(parts, arrays, strict=True)}

        def arrive(part: int) -> Array:
            array, name = arriving.pop(part)
            wait_ready(array, self._trainer.stall_secs, name)
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
        params = jax.tree.unflatten(self._arrivals.tree, leaves)
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
            evaluated_every=session.settings.explorers_evaluate_every,
            on_ready=lambda version: session.tell(Happened(VersionPublished(version))),
        )
        super().__init__(site, schedule, publisher)
        session.call_alone(HoldWeights(jax.process_index(), publisher.address))


def puller_of(site: EndSite) -> ServerPuller:
    """Makes an explorer's puller."""
    session = site.session
    return ServerPuller(
        site.abstract_params,
        contact(session, lambda version, secs: session.call(AskNewest(version, secs))),
        host=interface_towards(site.master_address),
        check_digest=site.verify,
        agree=session.agree,
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
