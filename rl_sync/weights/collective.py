"""Weights by collective transfer: device to device, from the trainer to one explorer at a time.

Trainer and explorers are processes of one cluster (`cluster.py`). A transfer is a permutation over
a mesh of two devices, so both sides must enter it; they agree on that beforehand (`rendezvous.py`).
Both sides enter from the thread that calls `publish`, `serve_waiting` or `pull`, which must be the
one thread that dispatches collectives in that process.

Letters in shapes: W words of a bucket.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32

from rl_sync.types import Params
from rl_sync.weights.cluster import TRAINER, process_device
from rl_sync.weights.digest import digest, digest_words, to_text
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.packing import PackingPlan, plan_packing
from rl_sync.weights.rendezvous import Rendezvous, Request, TrainerRendezvous

BUCKET_BYTES = 64 * 2**20

_SLICE_SECS = 0.5
_PAUSE_SECS = 0.01


class Meeting(NamedTuple):
    """How a trainer that waits for its explorers stands.

    Attributes:
      version: what it is publishing.
      missing: the explorers that have not come for it yet.
      waited_secs: since when.
    """

    version: int
    missing: tuple[int, ...]
    waited_secs: float


class Channel:
    """Moves buckets from one process's device to another's; both call it, once a transfer.

    Args:
      source, target: the two devices.
    """

    def __init__(self, source: jax.Device, target: jax.Device) -> None:
        mesh = Mesh(np.array([source, target]), ("role",))
        spec = PartitionSpec("role")
        self._sharding = NamedSharding(mesh, spec)
        self._target = target
        self._move = jax.jit(
            jax.shard_map(
                lambda bucket: lax.ppermute(bucket, "role", [(0, 1)]),
                mesh=mesh,
                in_specs=spec,
                out_specs=spec,
            )
        )

    def send(self, buckets: Iterable[UInt32[Array, " W"]]) -> None:
        """The source's side. Blocks until the target has each bucket."""
        for bucket in buckets:
            self._enter(bucket)

    def receive(self, plan: PackingPlan) -> tuple[UInt32[Array, " W"], ...]:
        """The target's side. Blocks until it has all buckets."""
        empty = jax.device_put(jnp.zeros((plan.bucket_words,), jnp.uint32), self._target)
        return tuple(self._enter(empty) for _ in range(plan.buckets))

    def _enter(self, mine: UInt32[Array, " W"]) -> UInt32[Array, " W"]:
        shape = (2 * mine.size,)
        both = jax.make_array_from_single_device_arrays(shape, self._sharding, [mine])
        moved = self._move(both).addressable_shards[0].data
        # One collective at a time: nothing but the order of dispatch pairs the two sides.
        return jax.block_until_ready(moved)


class _Held(NamedTuple):
    version: int
    buckets: tuple[UInt32[Array, " W"], ...]
    digest: UInt32[Array, " 2"]


class CollectivePublisher:
    """The trainer's end of a collective transfer.

    What it holds of a version are packed buckets, made when it is published: copies, so that the
    trainer may donate its parameters.

    Args:
      like: the parameters, as arrays or `jax.ShapeDtypeStruct`s.
      explorers: the process indices of the explorers.
      rendezvous: where explorers ask.
      meet: whether `publish` waits until each explorer has come for the version and got it. Right
        for exact pulls; do not publish a version then that no explorer is going to use. Otherwise
        explorers get versions when the trainer calls `serve_waiting`.
      keep: how many of the newest versions are held for explorers that come later.
      bucket_bytes: the most that one bucket may hold; the same on both sides.
      timeout_secs: how long `publish` waits for the explorers.
      on_wait: called again and again while it waits.

    Raises:
      ValueError: no explorer, or an argument out of range.
    """

    def __init__(
        self,
        like: Params,
        explorers: Iterable[int],
        rendezvous: TrainerRendezvous,
        *,
        meet: bool,
        keep: int = 1,
        bucket_bytes: int = BUCKET_BYTES,
        timeout_secs: float = 600.0,
        on_wait: Callable[[Meeting], None] | None = None,
    ) -> None:
        self._explorers = tuple(explorers)
        if not self._explorers or TRAINER in self._explorers or keep < 1:
            raise ValueError(
                f"A collective publisher needs explorers other than process {TRAINER}, and keep of"
                f" at least 1; not explorers={self._explorers}, keep={keep}."
            )
        self._plan = plan_packing(like, bucket_bytes)
        self._pack = jax.jit(self._plan.pack)
        self._rendezvous = rendezvous
        self._meet = meet
        self._keep = keep
        self._timeout_secs = timeout_secs
        self._on_wait = on_wait
        self._channels: dict[int, Channel] = {}
        self._held: list[_Held] = []

    def publish(self, version: int, params: Params) -> None:
        """Holds `version` for the explorers and, if they are to meet, gives it to each of them.

        Raises:
          ValueError: `params` is not as planned.
          WeightsTimeoutError: an explorer did not come in time; the message says which.
          WeightsTransferError: a transfer broke.
        """
        self._plan.check(params)
        self._held.append(_Held(version, self._pack(params), digest_words(params)))
        del self._held[: -self._keep]
        self._rendezvous.announce(version)
        if self._meet:
            self._give_to_all(version)

    def serve_waiting(self, timeout_secs: float = 0.0) -> list[tuple[int, int]]:
        """Gives the explorers that stand ready the newest version that they can use.

        Args:
          timeout_secs: how long to wait for a first one; 0 does not wait.

        Returns:
          Pairs of explorer and version.

        Raises:
          WeightsTransferError: a transfer broke.
        """
        deadline = time.monotonic() + timeout_secs
        while True:
            left = max(0.0, deadline - time.monotonic())
            served = [
                (request.explorer, held.version)
                for request in self._rendezvous.waiting(left)
                if (held := self._suitable(request)) and self._give(request, held)
            ]
            if served or time.monotonic() >= deadline:
                return served
            time.sleep(min(_PAUSE_SECS, left))  # those who wait want what is not there yet

    def close(self) -> None:
        """Frees the versions held; those who still wait run into their deadlines."""
        self._held.clear()
        self._channels.clear()

    def _give_to_all(self, version: int) -> None:
        start = time.monotonic()
        missing = set(self._explorers)
        while missing:
            waited = time.monotonic() - start
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
            f" ({len(self._explorers) - len(missing)} of {len(self._explorers)} came). "
            + (f"Meanwhile {'; '.join(others)}." if others else "Nobody asks for any version.")
        )

    def _suitable(self, request: Request) -> _Held | None:
        fitting = [held for held in self._held if request.accepts(held.version)]
        return fitting[-1] if fitting else None

    def _give(self, request: Request, held: _Held) -> bool:
        if not self._rendezvous.grant(request, held.version, to_text(held.digest)):
            return False
        if request.explorer not in self._channels:
            self._channels[request.explorer] = Channel(
                process_device(TRAINER), process_device(request.explorer)
            )
        try:
            self._channels[request.explorer].send(held.buckets)
        except jax.errors.JaxRuntimeError as error:
            raise WeightsTransferError(
                f"Sending version {held.version} to explorer {request.explorer} broke; its process"
                f" has probably died: {error}"
            ) from error
        return True


class CollectivePuller:
    """An explorer's end of a collective transfer.

    Args:
      like: the parameters as arrays or `jax.ShapeDtypeStruct`s; where these have shardings, the
        parameters get them.
      explorer: this process's index.
      rendezvous: where to ask.
      bucket_bytes: as the publisher's.
      check_digest: whether to compare what was received with what was published.
    """

    def __init__(
        self,
        like: Params,
        explorer: int,
        rendezvous: Rendezvous,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        check_digest: bool = True,
    ) -> None:
        self._plan = plan_packing(like, bucket_bytes)
        self._unpack = jax.jit(self._plan.unpack)
        self._shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), like)
        self._explorer = explorer
        self._rendezvous = rendezvous
        self._check_digest = check_digest

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """See `interface.Puller`. The deadline is for the trainer's grant; the transfer itself
        cannot be interrupted.

        Raises:
          WeightsTimeoutError: the trainer granted no such version in time.
          WeightsMismatchError: what arrived is not what was published.
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
            buckets = self._channel.receive(self._plan)
        except jax.errors.JaxRuntimeError as error:
            raise WeightsTransferError(
                f"Receiving version {grant.version} broke; the trainer's process has probably"
                f" died: {error}"
            ) from error
        params = self._place(self._unpack(buckets))
        if self._check_digest and (received := digest(params)) != grant.digest:
            raise WeightsMismatchError(grant.version, grant.digest, received)
        return grant.version, params

    def newest(self) -> int:
        """The newest version that the trainer announced; -1 if there is none."""
        return self._rendezvous.newest()

    def close(self) -> None:
        """Nothing is held between pulls."""

    @functools.cached_property
    def _channel(self) -> Channel:
        return Channel(process_device(TRAINER), process_device(self._explorer))

    def _place(self, params: Params) -> Params:
        def place(leaf: Array, sharding: jax.sharding.Sharding | None) -> Array:
            return leaf if sharding is None else jax.device_put(leaf, sharding)

        return jax.tree.map(place, params, self._shardings)
