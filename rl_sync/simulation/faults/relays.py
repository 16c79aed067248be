"""Explorers that hand on differences of weights in the simulation.

Who asks whom is decided by the real `rl_sync.weights.deltas.relay_tree.RelayTree`, in the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rl_sync.messages.weight_calls import Relay
from rl_sync.simulation.faults.drawn_run import MASTER, TRAINER
from rl_sync.simulation.faults.invariants import digest_of
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess
from rl_sync.simulation.faults.weights_store import Offer
from rl_sync.weights.deltas.artifact import ArtifactKey
from rl_sync.weights.deltas.relay_tree import RelayTree

_STALL_SECS = 3.0
"""Time after which a source counts as failed."""


class RelayJoined(NamedTuple):
    """A process hands on blocks from now on, at an address; see `RelayTree.join`."""

    reader: str
    address: str


class RelayLeft(NamedTuple):
    """An explorer has died; see `RelayTree.leave`."""

    explorer: str


class AskPath(NamedTuple):
    """An explorer asks whom it may ask for blocks; see `RelayTree.path`."""

    reader: str


class RelayFailed(NamedTuple):
    """A process has failed as a source of blocks; see `RelayTree.report`."""

    source: str


class FetchBlock(NamedTuple):
    """Asks for the payload of an artifact, at an address of one life of a process."""

    key: ArtifactKey
    address: str


def tree_of(fanout: int, addresses: Mapping[str, str]) -> RelayTree:
    """Returns the tree of processes that have joined."""
    tree = RelayTree(fanout)
    for reader, address in addresses.items():
        tree.join(reader, address)
    return tree


TreeEvent = RelayJoined | RelayLeft


def addresses_after(addresses: Mapping[str, str], event: TreeEvent) -> dict[str, str]:
    """Returns the addresses of a tree's processes after one came, or an explorer left."""
    tree = tree_of(1, addresses)
    if isinstance(event, RelayJoined):
        tree.join(*event)
    else:
        tree.leave(event.explorer)
    return tree.addresses


class BlockReader:
    """Fetches payloads from other explorers first, and from the trainer at last; hands them on.

    Args:
      explorer: the explorer's process.
    """

    def __init__(self, explorer: SimulatedProcess) -> None:
        self._explorer = explorer
        self._name = f"{explorer.name}.0"
        self._address = f"{explorer.name} {explorer.life}"
        self._held: dict[ArtifactKey, int] = {}

    def join(self) -> None:
        """Tells the master that other explorers can fetch weights from this one."""
        joined = RelayJoined(self._name, self._address)
        self._explorer.call(MASTER, joined, lambda _: None, "relays")

    def hand_on(self, request: ArrivedCall, answer: Answerer) -> None:
        """Answers another explorer; not one who wants an earlier life of this process."""
        if request.message.address == self._address:
            answer(self._held.get(request.message.key))

    def fetch(self, offer: Offer, then: Callable[[Offer | None], None]) -> None:
        """Adds the payloads to an offer; None if the trainer does not have them any more."""

        def begin(path: list[Relay]) -> None:
            _Fetch(self._explorer, offer, path, self.accepts, then).go_on()

        self._explorer.call(MASTER, AskPath(self._name), begin)

    def keep(self, offer: Offer) -> None:
        """Hands on the payloads of an offer that led to the right digest."""
        payloads = offer.deltas or (offer.full,) * len(offer.route)
        self._held = {
            key: payload
            for key, payload in zip(offer.route, payloads, strict=True)
            if payload is not None
        }

    def accepts(self, payload: int, check: str) -> bool:
        """Says whether a payload has the check sum of the trainer's list."""
        return digest_of(payload) == check


class _Fetch:
    """Fetches the payloads of one offer, each from the first source that has it.

    Args:
      explorer: the process that fetches.
      offer: the trainer's offer.
      path: explorers to ask before the trainer, in order.
      accepts: says whether a payload has a check sum.
      then: see `BlockReader.fetch`.
    """

    def __init__(
        self,
        explorer: SimulatedProcess,
        offer: Offer,
        path: list[Relay],
        accepts: Callable[[int, str], bool],
        then: Callable[[Offer | None], None],
    ) -> None:
        self._explorer, self._offer, self._path = explorer, offer, path
        self._accepts, self._then = accepts, then
        self._found: list[int] = []
        self._asked = 0

    def go_on(self) -> None:
        """Asks the next source for the next payload, or ends."""
        self._asked += 1  # Late answers of earlier sources do not count any more.
        offer, found = self._offer, self._found
        if len(found) == len(offer.route):
            payloads = {"full": found[0]} if offer.is_full else {"deltas": tuple(found)}
            self._then(offer._replace(**payloads))
            return
        key = offer.route[len(found)]
        if not self._path:
            self._explorer.call(TRAINER, FetchBlock(key, ""), self._from_trainer)
            return
        asked, relay = self._asked, self._path[0]
        target = relay.address.partition(" ")[0]

        def answered(payload: int | None) -> None:
            if self._asked == asked:
                self._from_relay(payload)

        def stalled() -> None:
            if self._asked == asked:
                self._explorer.forget_call("blocks")
                self._leave_out(has_failed=True)

        self._explorer.call(target, FetchBlock(key, relay.address), answered, "blocks")
        self._explorer.after(_STALL_SECS, stalled)

    def _from_trainer(self, payload: int | None) -> None:
        if payload is None:
            self._asked += 1
            self._then(None)
            return
        if self._is_right(payload):
            self._found.append(payload)
        self.go_on()

    def _from_relay(self, payload: int | None) -> None:
        if payload is not None and self._is_right(payload):
            self._found.append(payload)
            self.go_on()
        else:
            self._leave_out(has_failed=payload is not None)

    def _is_right(self, payload: int) -> bool:
        check = self._offer.checks[len(self._found)]
        return not self._explorer.world.network.damages() and self._accepts(payload, check)

    def _leave_out(self, has_failed: bool) -> None:
        """Asks the next source, from now on."""
        relay = self._path.pop(0)
        if has_failed:
            failed = RelayFailed(relay.name)
            self._explorer.call(MASTER, failed, lambda _: None, "relays")
        self.go_on()
