"""An explorer's end of a point-to-point transfer: it fetches the parts that its devices need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.digest import LeafSums, combine, leaf_sums, to_text
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.server_arrivals import Arrivals
from rl_sync.weights.server_holder import Holder, Offer
from rl_sync.weights.server_manifest import Manifest, first_difference, leaves_of
from rl_sync.weights.server_transport import start_server, wait_ready

_SLICE_SECS = 1.0


class _Line(NamedTuple):
    """Connection to one process of the trainer.

    Attributes:
      name: the name of the process, for errors.
      connection: the connection to its transfer server.
      parts: the parts that are fetched from it.
    """

    name: str
    holder: Holder
    connection: Any
    parts: tuple[int, ...]


class _Route(NamedTuple):
    """Everything that stays the same from pull to pull."""

    arrivals: Arrivals
    lines: tuple[_Line, ...]


class ServerPuller:
    """Fetches versions from a trainer's processes into the explorer's own sharding.

    Each process of an explorer has a puller, which gets the shards of its own devices. All of them
    call `pull` with the same arguments.

    Args:
      like: the parameters as arrays or `jax.ShapeDtypeStruct`s, with the shardings to pull into.
      reader: a name that no other running puller of the trainer has.
      find_holders: finds the trainer's processes, by their index; called again after a failure.
      newest: returns the newest offered version, -1 if there is none. Its arguments are the version
        to wait for, and the longest wait in seconds.
      host: this process's own interface.
      check_digest: whether to compare the digest of the received weights with the published one.
      agree: the explorer's processes agree by it; the first of them chooses the version.
      stall_secs: the time after which a transfer without progress is given up.

    Raises:
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        like: Params,
        reader: str,
        find_holders: Callable[[], Sequence[Holder]],
        newest: Callable[[int, float], int],
        *,
        host: str,
        check_digest: bool = True,
        agree: Agree = alone,
        stall_secs: float = 60.0,
    ) -> None:
        self._like, self._reader = like, reader
        self._find_holders, self._newest = find_holders, newest
        self._server = start_server(host)
        self._check_digest = check_digest
        self._agree = agree
        self._stall_secs = stall_secs
        self._route: _Route | None = None

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and fetches it; see `interface.Puller`.

        The deadline is for the offer; a transfer that makes progress may take longer. After an
        error the next pull connects anew.

        Raises:
          WeightsTimeoutError: no such version was offered in time.
          WeightsMismatchError: the received weights differ from the published ones.
          WeightsTransferError: the trainer is gone, or is stuck.
          ValueError: the trainer offers another model than `like`.
        """
        wanted = wanted_text(exactly, at_least)
        deadline = time.monotonic() + timeout_secs
        try:
            while not (offers := self._offers(exactly, at_least, deadline)):
                late = self._agree("late", lambda: time.monotonic() >= deadline)
                if late:
                    raise WeightsTimeoutError(
                        f"{self._reader} waited {timeout_secs:.1f} s for {wanted} of the weights;"
                        f" the newest that the trainer offers is {self.newest()}. Either the"
                        " trainer is slower than the deadline, or it has stopped."
                    )
            route = self._connected()
            params, received = self._fetch(route, offers)
            published = [line.holder.taken(self._reader) for line in route.lines]
        except ConnectionError as error:
            self._route = None
            raise WeightsTransferError(
                f"{self._reader} wanted {wanted} of the weights, but the trainer does not answer:"
                f" {error}"
            ) from error
        except WeightsTransferError:
            self._route = None
            raise
        version = offers[0].version
        if self._check_digest and received != published[0]:
            raise WeightsMismatchError(version, published[0], received)
        return version, params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `interface.Puller`."""
        return self._newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer that this process will not ask again."""
        if self._route is not None:
            for line in self._route.lines:
                line.holder.close_line(self._reader)
        self._route = None

    def _offers(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[Offer] | None:
        """Asks each of the trainer's processes for an offer; None if there is none yet."""
        mine: list[Offer] = []

        def choose() -> int | None:
            mine.extend(self._ask(self._connected(), exactly, at_least, deadline) or [])
            return mine[0].version if mine else None

        version = self._agree("a version", choose)
        if version is None or mine:
            return mine
        offers = self._ask(self._connected(), version, None, time.monotonic() + self._stall_secs)
        if offers is None:
            raise WeightsTransferError(
                f"{self._reader} was not offered version {version}, which the first process of its"
                " program was."
            )
        return offers

    def _connected(self) -> _Route:
        if self._route is None:
            self._route = self._connect()
        return self._route

    def _connect(self) -> _Route:
        holders = self._find_holders()
        manifest = Manifest.from_wire(holders[0].manifest())
        if (pair := first_difference(leaves_of(self._like), manifest.leaves)) is not None:
            raise ValueError(
                f"The trainer offers {pair[1]} where this explorer has {pair[0]}: start both with"
                " the same model and the same explorer.dtype."
            )
        arrivals = Arrivals(self._like, manifest)
        by_holder: dict[int, list[int]] = {}
        for part in arrivals.wanted:
            by_holder.setdefault(manifest.parts[part].holder, []).append(part)
        lines = []
        for index, parts in sorted(by_holder.items()):
            address = holders[index].open(self._reader)
            lines.append(
                _Line(
                    f"process {index} of the trainer at {address}",
                    holders[index],
                    self._server.connect(address),
                    tuple(parts),
                )
            )
        return _Route(arrivals, tuple(lines))

    def _ask(
        self, route: _Route, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[Offer] | None:
        """Asks each process for an offer of one version; None if there is none at the moment."""
        offers: list[Offer] = []
        for line in route.lines:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            answer = line.holder.offer(self._reader, list(line.parts), exactly, at_least, left)
            if answer is None:
                return None
            offers.append(Offer(*answer))
            exactly, at_least = offers[0].version, None
        return offers

    def _fetch(self, route: _Route, offers: Sequence[Offer]) -> tuple[Params, str]:
        """Fetches the parameters, and their digest if it is to be checked."""
        arriving: dict[int, tuple[Array, str]] = {}
        for line, offer in zip(route.lines, offers, strict=True):
            wanted = [route.arrivals.wanted[part] for part in line.parts]
            arrays = line.connection.pull(offer.uuid, wanted)
            name = f"{line.name} (version {offer.version})"
            arriving |= {p: (x, name) for p, x in zip(line.parts, arrays, strict=True)}

        def arrive(part: int) -> Array:
            array, name = arriving.pop(part)
            wait_ready(array, self._stall_secs, name)
            return array

        # All processes of an explorer compute this together, so at its end all have everything.
        # Until then the version is kept for each of them.
        if self._check_digest or jax.process_count() > 1:
            sums: list[LeafSums] = []
            params = route.arrivals.assemble(
                arrive, lambda number, leaf: sums.append(leaf_sums(leaf))
            )
            return params, to_text(combine(params, sums))
        return route.arrivals.assemble(arrive, lambda number, leaf: None), ""
