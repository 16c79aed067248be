"""The weights of sampling sessions, of which only the latest are kept in memory."""

from __future__ import annotations

import collections
import dataclasses
import http
import threading

from rl_sync.addons.tinker.adapter_sampler import AdapterWeights
from rl_sync.addons.tinker.tinker_calls import CallRefusedError


@dataclasses.dataclass(eq=False)
class SamplerSource:
    """The weights of a sampling session.

    Attributes:
      model_path: address of their checkpoint; None for the base model and for snapshots.
      weights: the weights; None while they are not in memory.
    """

    session_id: str
    model_path: str | None
    weights: AdapterWeights | None


class SamplerSources:
    """The sampling sessions by their ids, those that were used last at the end.

    Args:
      most: maximum number of sessions whose weights are in memory.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._sources: collections.OrderedDict[str, SamplerSource] = collections.OrderedDict()

    def keep(self, sampler_id: str, source: SamplerSource) -> None:
        """Keeps a session; drops the weights of the oldest ones, and snapshots with them."""
        with self._lock:
            self._sources[sampler_id] = source
            held = [name for name, one in self._sources.items() if one.weights is not None]
            for name in held[: max(0, len(held) - self._most)]:
                if self._sources[name].model_path is None:
                    del self._sources[name]
                else:
                    self._sources[name].weights = None

    def find(self, sampler_id: str) -> SamplerSource:
        """Returns a session.

        Raises:
          CallRefusedError: there is no such session, or its weights were dropped.
        """
        with self._lock:
            if (found := self._sources.get(sampler_id)) is None:
                raise CallRefusedError(
                    f"There is no sampling session {sampler_id}: its session has ended, or its"
                    f" weights were dropped, since {self._most} newer ones are in use. Save weights"
                    " under a name to sample with them for longer.",
                    http.HTTPStatus.NOT_FOUND,
                )
            self._sources.move_to_end(sampler_id)
            return found

    def end(self, session_id: str) -> None:
        """Ends the sampling sessions of a client's session."""
        with self._lock:
            for name, source in list(self._sources.items()):
                if source.session_id == session_id:
                    del self._sources[name]
