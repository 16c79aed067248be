"""Collective transfer: shard to shard, from the trainer to one explorer at a time.

Trainer and explorers are processes of one cluster (`cluster.py`). The processes of both sides must
enter a transfer (`link.py`), and agree on it beforehand (`rendezvous.py`). They enter it in the
thread that calls `publish`, `serve_waiting` or `pull`. Only this thread may dispatch collectives in
its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import jax
from jaxtyping import Array, UInt32

from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.copies import copied
from rl_sync.weights.digest import digest, digest_words, to_text
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.rendezvous import Rendezvous, Request, TrainerRendezvous

_SLICE_SECS = 0.5
_PAUSE_SECS = 0.01


class Sender(Protocol):
    """The trainer's side of a link; see `link.Link`."""

    def send(self, params: Params) -> None:
        """Blocks until the explorer has the parameters."""


class Receiver(Protocol):
    """An explorer's side of a link; see `link.Link`."""

    def receive(self) -> Params:
        """Blocks until the parameters are here."""


class Meeting(NamedTuple):
    """Status of a trainer that waits for its explorers.

    Attributes:
      version: the version that it publishes.
      missing: the explorers that have not come for it yet.
      waited_secs: the time since the wait began.
    """

    version: int
    missing: tuple[int, ...]
    waited_secs: float


class _Held(NamedTuple):
    version: int
    params: Params
    digest: UInt32[Array, " 2"]


class CollectivePublisher:
    """The trainer's end of a collective transfer.

    Args:
      links: the link to each explorer, by its number.
      rendezvous: the trainer's side of the rendezvous, where explorers ask.
      meet: whether `publish` waits until each explorer has received the version. Use it for exact
        pulls, and then publish only versions that explorers will use. Otherwise explorers get
        versions when the trainer calls `serve_waiting`, from a copy, so that the trainer may donate
        its parameters.
      keep: the number of newest versions that are held for explorers that come later.
      timeout_secs: the deadline of `publish` for the explorers.
      on_wait: a function called repeatedly while it waits.
      agree: the trainer's processes agree on the time by it; the rendezvous makes them agree on
        everything else.

    Raises:
      ValueError: there is no explorer, or an argument is out of range.
    """

    def __init__(
        self,
        links: Mapping[int, Sender],
        rendezvous: TrainerRendezvous,
        *,
        meet: bool,
        keep: int = 1,
        timeout_secs: float = 600.0,
        on_wait: Callable[[Meeting], None] | None = None,
        agree: Agree = alone,
    ) -> None:
        if not links or keep < 1:
            raise ValueError(
                "A collective publisher needs explorers, and keep of at least 1; not explorers="
                f"{list(links)}, keep={keep}."
            )
        self._links = dict(links)
        self._rendezvous = rendezvous
        self._meet = meet
        self._keep = keep
        self._timeout_secs = timeout_secs
        self._on_wait = on_wait
        self._agree = agree
        self._held: list[_Held] = []

    def publish(self, version: int, params: Params) -> None:
        """Holds `version` for the explorers, and with `meet` sends it to each of them.

        Raises:
          ValueError: `params` is not as planned.
          WeightsTimeoutError: an explorer did not come in time; the message names it.
          WeightsTransferError: a transfer broke.
        """
        # Old versions are freed first. With `meet` no copy is needed: the transfer ends before the
        # caller can donate its parameters.
        del self._held[: max(0, len(self._held) + 1 - self._keep)]
        held = params if self._meet else copied(params)
        self._held.append(_Held(version, held, digest_words(params)))
        self._rendezvous.announce(version)
        if self._meet:
            try:
                self._give_to_all(version)
            finally:
                self._held.clear()

    def serve_waiting(self, timeout_secs: float = 0.0) -> list[tuple[int, int]]:
        """Sends to each waiting explorer the newest version that it can use.

        Args:
          timeout_secs: the longest wait for a first explorer; 0 does not wait.

        Returns:
          Pairs of explorer and version.

        Raises:
          WeightsTransferError: a transfer broke.
        """
        left, deadline = timeout_secs, self._now() + timeout_secs
        while True:
            served = [
                (request.explorer, held.version)
                for request in self._rendezvous.waiting(left)
                if (held := self._suitable(request)) and self._give(request, held)
            ]
            left = max(0.0, deadline - self._now())
            if served or not left:
                return served
            time.sleep(min(_PAUSE_SECS, left))  # they wait for later versions

    def close(self) -> None:
        """Frees the held versions; explorers that still wait reach their deadlines."""
        self._held.clear()

    def _now(self) -> float:
        return self._agree("the time", time.monotonic)

    def _give_to_all(self, version: int) -> None:
        start = self._now()
        missing = set(self._links)
        while missing:
            waited = self._now() - start
            if self._on_wait is not None:
                self._on_wait(Meeting(version, tuple(sorted(missing)), waited))
            if waited > self._timeout_secs:
                raise WeightsTimeoutError(self._missing_text(version, missing, waited))
            left = self._timeout_secs - waited
            served = self.serve_waiting(min(_SLICE_SECS, max(left, _PAUSE_SECS)))
            missing -= {explorer for explorer, given in served if given == version}

    def _missing_text(self, version: int, missing: set[int], waited_secs: float) -> str:
        others = [
            f"explorer {request.explorer} asks for {wanted_text(request.exactly, request.at_least)}"
            for request in self._rendezvous.waiting(0.0)
        ]
        return (
            f"The trainer waited {waited_secs:.1f} s for explorer"
            f" {', '.join(map(str, sorted(missing)))} to come for version {version}"
            f" ({len(self._links) - len(missing)} of {len(self._links)} came). "
            + (f"Meanwhile {'; '.join(others)}." if others else "Nobody asks for any version.")
        )

    def _suitable(self, request: Request) -> _Held | None:
        fitting = [held for held in self._held if request.accepts(held.version)]
        return fitting[-1] if fitting else None

    def _give(self, request: Request, held: _Held) -> bool:
        if not self._rendezvous.grant(request, held.version, to_text(held.digest)):
            return False
        try:
            self._links[request.explorer].send(held.params)
        except jax.errors.JaxRuntimeError as error:
            raise WeightsTransferError(
                f"Sending version {held.version} to explorer {request.explorer} broke; its process"
                f" has probably died: {error}"
            ) from error
        return True


class CollectivePuller:
    """An explorer's end of a collective transfer.

    Args:
      link: the link from the trainer.
      explorer: this explorer's number.
      rendezvous: the explorers' side of the rendezvous.
      check_digest: whether to compare the digest of the received weights with the published one.
    """

    def __init__(
        self,
        link: Receiver,
        explorer: int,
        rendezvous: Rendezvous,
        *,
        check_digest: bool = True,
    ) -> None:
        self._link = link
        self._explorer = explorer
        self._rendezvous = rendezvous
        self._check_digest = check_digest

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and receives it; see `interface.Puller`.

        The deadline is for the trainer's grant. The transfer itself cannot be interrupted.

        Raises:
          WeightsTimeoutError: the trainer granted no such version in time.
          WeightsMismatchError: the received weights differ from the published ones.
          WeightsTransferError: the transfer broke.
        """
        wanted = wanted_text(exactly, at_least)
        try:
            grant = self._rendezvous.request(
                self._explorer, exactly=exactly, at_least=at_least, timeout_secs=timeout_secs
            )
        except TimeoutError as error:
            raise WeightsTimeoutError(
                f"Explorer {self._explorer} waited {timeout_secs:.1f} s for {wanted} of the"
                f" weights: {error}. Either the trainer is slower than the deadline, or it has"
                " stopped."
            ) from error
        try:
            params = self._link.receive()
        except jax.errors.JaxRuntimeError as error:
            raise WeightsTransferError(
                f"Receiving version {grant.version} broke; the trainer's process has probably"
                f" died: {error}"
            ) from error
        if self._check_digest and (received := digest(params)) != grant.digest:
            raise WeightsMismatchError(grant.version, grant.digest, received)
        return grant.version, params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """Returns the newest version that the trainer announced; see `interface.Puller`."""
        return self._rendezvous.newest(at_least, timeout_secs)

    def close(self) -> None:
        """Does nothing: the puller holds nothing between pulls."""
