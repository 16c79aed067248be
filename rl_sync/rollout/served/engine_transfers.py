"""Ways by which a checkpoint reaches a served engine."""

from __future__ import annotations

import abc
import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from rl_sync.addresses import address_of, interface_towards
from rl_sync.rollout.served.vllm_calls import VllmCalls
from rl_sync.rollout.served.weights_desk import WeightsDesk


class EngineTransfer(abc.ABC):
    """Brings a checkpoint into an engine: while the engine generates, and while it is paused.

    Both parts raise `EngineLostError` if the engine does not answer, and `EngineRefusedError` if it
    cannot take the checkpoint.
    """

    @abc.abstractmethod
    def send(self, checkpoint: Path, key: str, meanwhile: Callable[[], None]) -> None:
        """Brings the checkpoint near the engine, which generates meanwhile.

        Args:
          checkpoint: directory of the checkpoint.
          key: name of this installation.
          meanwhile: called again and again.
        """

    @abc.abstractmethod
    def load(self, checkpoint: Path, key: str) -> None:
        """Lets the paused engine take the weights of the checkpoint."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what serves the checkpoints."""


class CheckpointTransfer(EngineTransfer):
    """The engine reads the checkpoint itself, in a directory that both machines see."""

    def __init__(self, calls: VllmCalls) -> None:
        self._calls = calls

    def send(self, checkpoint: Path, key: str, meanwhile: Callable[[], None]) -> None:
        """Does nothing; see `EngineTransfer`."""

    def load(self, checkpoint: Path, key: str) -> None:
        """See `EngineTransfer`."""
        self._calls.reload(os.fspath(checkpoint))

    def close(self) -> None:
        """Does nothing; see `EngineTransfer`."""


class DeltaTransfer(EngineTransfer):
    """The engine fetches what has changed; it needs the package `rl_sync_vllm`.

    Args:
      calls: calls of the engine.
      timeout_secs: longest time for which the engine may fetch nothing.
    """

    def __init__(self, calls: VllmCalls, timeout_secs: float) -> None:
        self._calls, self._timeout_secs = calls, timeout_secs
        self._desk: WeightsDesk | None = None

    @property
    def sent_bytes(self) -> int:
        """Bytes that were fetched so far."""
        return 0 if self._desk is None else self._desk.sent_bytes

    def send(self, checkpoint: Path, key: str, meanwhile: Callable[[], None]) -> None:
        """See `EngineTransfer`."""
        desk = self._desk = self._desk or WeightsDesk(_host_towards(self._calls.url))
        desk.offer(key, checkpoint)
        desk.wait(self._timeout_secs, lambda: self._calls.order_fetch(desk.url, key), meanwhile)

    def load(self, checkpoint: Path, key: str) -> None:
        """See `EngineTransfer`."""
        self._calls.load_fetched(key)

    def close(self) -> None:
        """See `EngineTransfer`."""
        if self._desk is not None:
            self._desk.close()


def _host_towards(url: str) -> str:
    """Returns the address of this machine by which a server reaches it."""
    parts = urllib.parse.urlsplit(url)
    return interface_towards(address_of(parts.hostname or "", parts.port or 80))
