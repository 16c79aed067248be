"""Published weights in the simulation: full copies, and differences to the version before."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.simulation.faults.invariants import digest_of
from rl_sync.weights.deltas.artifact import FULL, Artifact, ArtifactKey, HeldVersion, chain_from

_FULL_BYTES = 4


class Offer(NamedTuple):
    """Weights for a receiver to fetch.

    Attributes:
      target: the version with its digest.
      deltas: differences to apply in order.
      full: the whole weights; None if differences lead there.
      route: artifacts that lead to the target, in order.
      checks: check sum of each one's payload.
    """

    target: HeldVersion
    deltas: tuple[int, ...]
    full: int | None
    route: tuple[ArtifactKey, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """True if the whole weights are fetched."""
        return any(key.base == FULL for key in self.route)


class WeightsStore:
    """The trainer's newest versions, and the differences that lead to them.

    Args:
      chain: id of the publisher; see `ArtifactKey`.
      keep: number of versions that receivers may ask for.

    Attributes:
      deltas: difference that makes each version.
    """

    def __init__(self, chain: str, keep: int) -> None:
        self._chain, self._keep = chain, keep
        self._weights: dict[int, int] = {}
        self.deltas: dict[int, Artifact] = {}
        self._payloads: dict[int, int] = {}

    def add(self, version: int, weights: int) -> None:
        """Adds a version, and its difference to the one before it."""
        base = max((one for one in self._weights if one < version), default=None)
        if base is not None:
            before = self._weights[base]
            key = ArtifactKey(self._chain, version, base, 0)
            self.deltas[version] = Artifact(
                key, digest_of(weights), digest_of(before), {}, 1, _FULL_BYTES
            )
            self._payloads[version] = weights ^ before
        self._weights[version] = weights
        self.prune()

    def prune(self) -> None:
        """Drops old versions, and differences to versions that are dropped."""
        for version in sorted(self._weights)[: -self._keep]:
            del self._weights[version]
            self.deltas.pop(version, None)
            self._payloads.pop(version, None)

    def offer(self, version: int, exactly: bool, held: HeldVersion | None) -> Offer | None:
        """Chooses what a receiver has to fetch; None if there is no such version."""
        fitting = [
            one for one in self._weights if one == version or (one > version and not exactly)
        ]
        if not fitting:
            return None
        newest = max(fitting)
        weights = self._weights[newest]
        target = HeldVersion(self._chain, newest, digest_of(weights))
        route = self.route(held, target)
        if route is None:
            key = ArtifactKey(self._chain, newest, FULL, 0)
            return Offer(target, (), weights, (key,), (digest_of(weights),))
        payloads = tuple(self._payloads[one.key.version] for one in route)
        keys, checks = tuple(one.key for one in route), tuple(map(digest_of, payloads))
        return Offer(target, payloads, None, keys, checks)

    def payload(self, key: ArtifactKey) -> int | None:
        """Returns the payload of an artifact; None if it is gone, or another publisher's."""
        if key.base == FULL:
            return self._weights.get(key.version) if key.chain == self._chain else None
        artifact = self.deltas.get(key.version)
        return self._payloads[key.version] if artifact and artifact.key == key else None

    def route(self, held: HeldVersion | None, target: HeldVersion) -> list[Artifact] | None:
        """Returns the differences that lead to a version; None for a full copy."""
        return chain_from(held, self.deltas, target, _FULL_BYTES)


def applied(weights: int | None, offer: Offer) -> int | None:
    """Returns the weights that an offer leads to; None if the digest is another one."""
    found = offer.full if offer.full is not None else weights
    if found is None:
        return None
    for payload in offer.deltas:
        found ^= payload
    return found if digest_of(found) == offer.target.digest else None
