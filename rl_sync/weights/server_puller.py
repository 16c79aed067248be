"""An explorer's end of a point-to-point transfer: it fetches the parts that its devices need."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.digest import digest
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.regions import (
    Region,
    device_regions,
    join,
    overlap,
    shape_of,
    within,
)
from rl_sync.weights.server_manifest import Leaf, Manifest, first_difference, leaves_of
from rl_sync.weights.server_publisher import Holder, Offer
from rl_sync.weights.server_transport import start_server, wait_ready

_SLICE_SECS = 1.0


class _Source(NamedTuple):
    """What of one part goes into a shard: the piece's place in the part, and what it shares."""

    part: int
    piece: int
    piece_region: Region
    shared: Region


class _Shard(NamedTuple):
    """One distinct region of a leaf in this process, made on one device, copied to the others."""

    leaf: int
    region: Region
    devices: tuple[jax.Device, ...]
    sources: tuple[_Source, ...]


class _Line(NamedTuple):
    """The way to one process of the trainer.

    Attributes:
      name: for errors.
      connection: to the transfer server there.
      parts: the parts that are fetched from it.
    """

    name: str
    holder: Holder
    connection: Any
    parts: tuple[int, ...]


class _Route(NamedTuple):
    """Everything that does not change from pull to pull."""

    manifest: Manifest
    shards: tuple[_Shard, ...]
    landings: Mapping[int, jax.Device]
    uses: Mapping[int, int]
    lines: tuple[_Line, ...]


class ServerPuller:
    """Fetches versions from a trainer's processes into the explorer's own sharding.

    Each process of an explorer has one, and gets what its own devices hold; all call `pull` alike.

    Args:
      like: the parameters as arrays or `jax.ShapeDtypeStruct`s, with the shardings to pull into.
      reader: a name that no other running puller of the trainer has.
      find_holders: finds the trainer's processes, by their index; asked again after a failure.
      newest: asks for the newest version that is offered; -1 if there is none.
      host: this process's own interface.
      check_digest: whether to compare what arrived with what was published.
      agree: how the explorer's processes agree; the first of them chooses the version.
      stall_secs: a transfer from which nothing has arrived for so long is given up.

    Raises:
      TransferUnavailableError: there is no transfer server here.
    """

    def __init__(
        self,
        like: Params,
        reader: str,
        find_holders: Callable[[], Sequence[Holder]],
        newest: Callable[[], int],
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
        """See `interface.Puller`. The deadline is for the offer; a transfer that goes on may take
        longer. After an error the next pull begins anew.

        Raises:
          WeightsTimeoutError: no such version was offered in time.
          WeightsMismatchError: what arrived is not what was published.
          WeightsTransferError: the trainer is gone, or stands still.
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
            params = self._fetch(route, offers)
            # All processes of an explorer have everything when they have computed this together,
            # and until then what was offered to one of them is kept for the others.
            received = digest(params) if self._check_digest or jax.process_count() > 1 else ""
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

    def newest(self) -> int:
        """The newest version that could be pulled now; -1 if there is none."""
        return self._newest()

    def close(self) -> None:
        """Tells the trainer that this process will not ask again."""
        if self._route is not None:
            for line in self._route.lines:
                line.holder.close_line(self._reader)
        self._route = None

    def _offers(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[Offer] | None:
        """An offer from each of the trainer's processes; None if there is none at the moment."""
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
        shards = _shards(self._like, manifest)
        landings: dict[int, jax.Device] = {}
        uses: collections.Counter[int] = collections.Counter()
        for shard in shards:
            for part in {source.part for source in shard.sources}:
                landings.setdefault(part, shard.devices[0])
                uses[part] += 1
        by_holder: dict[int, list[int]] = {}
        for part in landings:
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
        return _Route(manifest, shards, landings, uses, tuple(lines))

    def _ask(
        self, route: _Route, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[Offer] | None:
        """An offer of one version from each process; None if there is none at the moment."""
        offers: list[Offer] = []
        for line in route.lines:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            answer = line.holder.offer(self._reader, list(line.parts), exactly, at_least, left)
            if answer is None:
                return None
            offers.append(Offer(*answer))
            exactly, at_least = offers[0].version, None
        return offers

    def _fetch(self, route: _Route, offers: Sequence[Offer]) -> Params:
        arriving: dict[int, tuple[Array, str]] = {}
        for line, offer in zip(route.lines, offers, strict=True):
            wanted = [
                self._at(route.manifest.like(route.manifest.parts[part]), route.landings[part])
                for part in line.parts
            ]
            arrays = line.connection.pull(offer.uuid, wanted)
            name = f"{line.name} (version {offer.version})"
            arriving |= {p: (x, name) for p, x in zip(line.parts, arrays, strict=True)}
        uses = dict(route.uses)
        arrived: dict[int, list[Array]] = {}
        made: dict[int, dict[jax.Device, Array]] = collections.defaultdict(dict)
        for shard in route.shards:
            cells = []
            for source in shard.sources:
                if source.part not in arrived:
                    array, name = arriving.pop(source.part)
                    wait_ready(array, self._stall_secs, name)
                    part = route.manifest.parts[source.part]
                    arrived[source.part] = route.manifest.unpack(part, array)
                    del array
                cells.append((source, arrived[source.part][source.piece]))
            made[shard.leaf] |= _make(shard, cells, route.manifest.leaves[shard.leaf])
            del cells
            for index in {source.part for source in shard.sources}:
                uses[index] -= 1
                if not uses[index]:
                    del arrived[index]  # What is whole in a shard now need not be here as well.
        leaves, treedef = jax.tree.flatten(self._like)
        return jax.tree.unflatten(
            treedef, [_whole(leaf, made[index]) for index, leaf in enumerate(leaves)]
        )

    @staticmethod
    def _at(like: jax.ShapeDtypeStruct, device: jax.Device) -> jax.ShapeDtypeStruct:
        sharding = jax.sharding.SingleDeviceSharding(device)
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)


def _shards(like: Params, manifest: Manifest) -> tuple[_Shard, ...]:
    """The distinct shards of this process, and what each is made of."""
    pieces: dict[int, list[tuple[int, int, Region]]] = {}
    for index, part in enumerate(manifest.parts):
        for place, piece in enumerate(part.pieces):
            pieces.setdefault(piece.leaf, []).append((index, place, piece.region))
    shards = []
    here = jax.process_index()
    for leaf, x in enumerate(jax.tree.leaves(like)):
        devices: dict[Region, list[jax.Device]] = {}
        for device, region in device_regions(x).items():
            if device.process_index == here:
                devices.setdefault(region, []).append(device)
        for region, holding in devices.items():
            sources = [
                _Source(part, place, whole, shared)
                for part, place, whole in pieces.get(leaf, [])
                if (shared := overlap(whole, region)) is not None
            ]
            shards.append(_Shard(leaf, region, tuple(holding), tuple(sources)))
    return tuple(shards)


def _make(
    shard: _Shard, cells: Sequence[tuple[_Source, Array]], leaf: Leaf
) -> dict[jax.Device, Array]:
    """A shard on each of its devices."""
    first, *others = shard.devices
    if not cells:
        made = jax.device_put(jnp.zeros(shape_of(shard.region), leaf.dtype), first)
    elif len(cells) == 1 and cells[0][0].piece_region == shard.region:
        made = jax.device_put(cells[0][1], first)
    else:
        values = [jax.device_put(value, first) for _, value in cells]
        places = tuple((source.piece_region, source.shared) for source, _ in cells)
        made = _assemble(_relative(shard.region, places), values)
    return {first: made} | {device: jax.device_put(made, device) for device in others}


def _relative(
    region: Region, places: tuple[tuple[Region, Region], ...]
) -> tuple[Region, tuple[tuple[Region, Region], ...]]:
    """The same for shards that lie elsewhere but are made in the same way: compiled once."""

    def moved(inner: Region) -> Region:
        return tuple((a - o, b - o) for (a, b), (o, _) in zip(inner, region, strict=True))

    return moved(region), tuple((moved(whole), moved(shared)) for whole, shared in places)


@functools.partial(jax.jit, static_argnums=0)
def _assemble(
    plan: tuple[Region, tuple[tuple[Region, Region], ...]],
    values: list[Shaped[Array, "*piece"]],
) -> Shaped[Array, "*shard"]:
    region, places = plan
    cells = [
        (shared, value[within(shared, whole)])
        for (whole, shared), value in zip(places, values, strict=True)
    ]
    return join(region, cells)


def _whole(leaf: Any, shards: Mapping[jax.Device, Array]) -> Array:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return next(iter(shards.values()))
    local = [shards[device] for device in device_regions(leaf) if device in shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, local)
