"""Older versions of the weights, which play the opponents."""

from __future__ import annotations

import collections

import jax
import numpy as np

from rl_sync.models.placement import abstract_of, in_host_memory, move, shardings
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.types import Params


class OlderVersions:
    """A second engine, whose weights are older than the policy's.

    Whenever new weights arrive, one of the earlier versions is drawn uniformly at random for the
    opponents of all games in progress. Before there is an earlier version, opponents have the
    policy's weights.

    Args:
      engine: decodes the opponents' replies; nothing else uses it.
      count: maximum number of versions that are kept, in host memory.
      seed: seeds the draw, together with the policy's version.
    """

    def __init__(self, engine: RolloutEngine, count: int, seed: int) -> None:
        self.engine = engine
        self._seed = seed
        self._kept: collections.deque[tuple[int, Params]] = collections.deque(maxlen=count)
        self._newest: tuple[int, Params] | None = None

    @property
    def versions(self) -> list[int]:
        """Versions from which the next opponent is drawn."""
        newest = [] if self._newest is None else [self._newest[0]]
        return [*(version for version, _ in self._kept), *newest][-(self._kept.maxlen or 0) :]

    def take(self, params: Params, version: int) -> None:
        """Takes the policy's new weights, and draws the version that opponents use."""
        if self._newest is not None:
            if self._newest[0] == version:
                return
            self._kept.append(self._newest)
        abstract = abstract_of(params)
        self._newest = version, move(params, in_host_memory(abstract))
        if not self._kept:
            self.engine.load(params, version)
            return
        draw = np.random.default_rng([self._seed, version]).integers(len(self._kept))
        older, kept = self._kept[int(draw)]
        self.engine.load(jax.device_put(kept, shardings(abstract)), older)
