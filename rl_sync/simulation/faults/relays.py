"""Explorers that hand on differences of weights in the simulation.

Who asks whom is decided by the real `rl_sync.weights.deltas.relay_tree.RelayTree`, in the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rl_sync.simulation.faults.drawn_run import MASTER, TRAINER
from rl_sync.simulation.faults.invariants import digest_of
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess
from rl_sync.simulation.faults.weights_store import Offer
from rl_sync.weights.deltas.artifact import ArtifactKey
from rl_sync.weights.deltas.relay_tree import Relay, RelayTree

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
        self._asked = 0

    def join(self) -> None:
        """Tells the master that other explorers can ask here."""
        joined = RelayJoined(self._name, self._address)
        self._explorer.call(MASTER, joined, lambda _: None, "relays")

    def hand_on(self, request: ArrivedCall, answer: Answerer) -> None:
        """Answers another explorer; not one who wants an earlier life of this process."""
        if request.message.address == self._address:
            answer(self._held.get(request.message.key))

    def fetch(self, offer: Offer, then: Callable[[Offer | None], None]) -> None:
        """Adds the payloads to an offer; None if the trainer does not have them any more."""

        def ask(path: list[Relay]) -> None:
            self._next(offer, [], path, then)

        self._explorer.call(MASTER, AskPath(self._name), ask)

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

    def _next(
        self,
        offer: Offer,
        found: list[int],
        path: list[Relay],
        then: Callable[[Offer | None], None],
    ) -> None:
        """Fetches the next payload from the next source."""
        if len(found) == len(offer.route):
            if offer.is_full:
                then(offer._replace(full=found[0]))
            else:
                then(offer._replace(deltas=tuple(found)))
            return
        key, check = offer.route[len(found)], offer.checks[len(found)]

        is_damaged = self._explorer.world.network.damages()

        def is_right(payload: int) -> bool:
            return self.accepts(payload, check) and not is_damaged

        def from_trainer(payload: int | None) -> None:
            if payload is None:
                then(None)
            elif is_right(payload):
                self._next(offer, [*found, payload], path, then)
            else:
                self._next(offer, found, [], then)

        if not path:
            self._explorer.call(TRAINER, FetchBlock(key, ""), from_trainer)
            return
        relay, *rest = path
        self._asked += 1
        asked, answered = self._asked, False

        def from_relay(payload: int | None) -> None:
            nonlocal answered
            if self._asked != asked or answered:
                return
            answered = True
            if payload is not None and is_right(payload):
                self._next(offer, [*found, payload], path, then)
            else:
                give_up(payload is not None)

        def give_up(is_failure: bool) -> None:
            if is_failure:
                failed = RelayFailed(relay.name)
                self._explorer.call(MASTER, failed, lambda _: None, "relays")
            self._next(offer, found, rest, then)

        def stalled() -> None:
            nonlocal answered
            if not answered and self._asked == asked:
                answered = True
                self._explorer.forget_call("blocks")
                give_up(True)

        target = relay.address.partition(" ")[0]
        self._explorer.call(target, FetchBlock(key, relay.address), from_relay, "blocks")
        self._explorer.after(_STALL_SECS, stalled)
