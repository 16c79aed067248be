"""An explorer's conversation with the trainer's processes, from which it fetches versions.

Each process of the trainer offers the parts that its devices hold, whole or as what changed. A
puller asks all that hold parts for it, and its processes agree on the version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.messages.call import Call
from rl_sync.role_names import TRAINER
from rl_sync.transfers.server_publisher import AskManifest, CloseLine
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.ends_interface import (
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.parts import Arrivals, Manifest, first_difference, leaves_of

_SLICE_SECS = 1.0
_log = logging.getLogger(__name__)

R = TypeVar("R")
Offer = TypeVar("Offer")


class OfferPuller(Generic[Offer]):
    """Waits for a version that all processes of the trainer offer; subclasses receive it.

    Each process of an explorer has a puller, which fetches the shards of its own devices. All of
    them call `pull` with the same arguments.

    Args:
      params: abstract params in the shardings to pull into.
      trainer: the way to the trainer's processes.
      agree: lets the explorer's processes agree; the first of them chooses the version.
    """

    def __init__(self, params: Params, trainer: TrainerContact, *, agree: Agree = alone) -> None:
        self._params, self._trainer, self._agree = params, trainer, agree
        self._reader = trainer.reader
        self._addresses: Sequence[str] = ()
        self._clients: Sequence[RpcClient] = ()
        self._arrivals: Arrivals | None = None
        self._by_holder: dict[int, list[int]] = {}

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version, and fetches what it lacks; see `ends_interface.Puller`.

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
            return self._received(offers, exactly)
        except (ConnectionError, PeerLostError, RemoteError, WeightsTransferError) as error:
            self._disconnect()
            self._trainer.on_lost()
            if isinstance(error, WeightsTransferError):
                raise
            raise WeightsTransferError(
                f"{self._reader} wanted {wanted} of the weights, but the trainer does not answer:"
                f" {error}"
            ) from error

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._trainer.newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer, if it is still there, that this process will not ask again."""
        for holder in self._by_holder:
            try:
                self._call(holder, CloseLine(self._reader))
            except (PeerLostError, RemoteError):
                _log.info("The trainer had left before this explorer did.")
        self._disconnect()
        self._by_holder = {}

    def _received(self, offers: Mapping[int, Offer], exactly: int | None) -> tuple[int, Params]:
        """Receives the offered version, whose parts are those of `_by_holder`."""
        raise NotImplementedError

    def _asking(
        self, holder: int, exactly: int | None, at_least: int | None, secs: float
    ) -> Call[Offer | None]:
        """Returns the call that asks a process of the trainer for an offer."""
        raise NotImplementedError

    def _version_of(self, offer: Offer) -> int:
        raise NotImplementedError

    def _connected(self, manifest: Manifest) -> None:
        """Prepares what the offers of newly found processes need."""

    def _disconnect(self) -> None:
        """Lets the next pull find the trainer's processes again."""
        self._arrivals = None

    def _call(self, holder: int, call: Call[R], waits_secs: float = 0.0) -> R:
        return self._clients[holder].call(call, self._trainer.call_secs + waits_secs)

    def _offers(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> dict[int, Offer] | None:
        """Asks each of the trainer's processes for an offer; None if there is none yet."""
        mine: dict[int, Offer] = {}

        def choose() -> int | None:
            mine.update(self._ask(exactly, at_least, deadline) or {})
            return self._version_of(next(iter(mine.values()))) if mine else None

        version = self._agree("a version", choose)
        if version is None or mine:
            return mine
        offers = self._ask(version, None, time.monotonic() + self._trainer.stall_secs)
        if offers is None:
            raise WeightsTransferError(
                f"Process 0 of this explorer got an offer of version {version}, but"
                f" {self._reader} did not."
            )
        return offers

    def _ask(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> dict[int, Offer] | None:
        """Asks each process for an offer of one version; None if there is none at present."""
        if self._arrivals is None:
            self._connect()
        offers: dict[int, Offer] = {}
        for holder in self._by_holder:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            call = self._asking(holder, exactly, at_least, left)
            if (offer := self._call(holder, call, left)) is None:
                return None
            offers[holder] = offer
            exactly, at_least = self._version_of(offer), None
        return offers

    def _connect(self) -> None:
        """Finds the trainer's processes that hold parts for this process."""
        trainer = self._trainer
        self._addresses = trainer.addresses()
        self._clients = [trainer.client(at, TRAINER, trainer.secret) for at in self._addresses]
        manifest = self._call(0, AskManifest())
        if (pair := first_difference(leaves_of(self._params), manifest.leaves)) is not None:
            raise ValueError(
                f"The trainer offers {pair[1]} where this explorer has {pair[0]}: start both with"
                " the same model and the same explorer.dtype."
            )
        arrivals = Arrivals(self._params, manifest)
        by_holder: dict[int, list[int]] = {}
        for part in arrivals.wanted:
            by_holder.setdefault(manifest.parts[part].holder, []).append(part)
        self._by_holder = dict(sorted(by_holder.items()))
        self._connected(manifest)
        self._arrivals = arrivals
