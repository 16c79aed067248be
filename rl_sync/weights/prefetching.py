"""Weights that arrive while an explorer generates, and are there when it takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rl_sync.types import Params
from rl_sync.weights.ends_interface import Puller, WeightsTimeoutError, wanted_text

_SLICE_SECS = 1.0


class PrefetchingPuller:
    """Fetches each newer version in a thread, as soon as there is one.

    It serves latest pulls, and explorers of one process. A version counts as available once it has
    arrived and its digest was verified. At most three versions are in memory: the one that the
    explorer uses, the newest that has arrived, and the one that arrives.

    Args:
      puller: the puller of versions.
      on_arrival: called with each version that has arrived, and the seconds that this took.
    """

    def __init__(
        self, puller: Puller, on_arrival: Callable[[int, float], None] = lambda version, secs: None
    ) -> None:
        self._puller, self._on_arrival = puller, on_arrival
        self._changed = threading.Condition()
        self._arrived: tuple[int, Params] | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="weights-prefetch", daemon=True)
        self._thread.start()

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Takes the newest version that has arrived; see `ends_interface.Puller`.

        Raises:
          WeightsTimeoutError: no such version arrived in time.
          Exception: the thread could not fetch a version.
        """
        wanted = wanted_text(exactly, at_least)

        def suits() -> bool:
            version = self.at_hand()
            return version == exactly if exactly is not None else version >= (at_least or 0)

        with self._changed:
            self._changed.wait_for(lambda: suits() or self._error is not None, timeout_secs)
            if suits():
                assert self._arrived is not None
                return self._arrived
            self._raise_error()
            raise WeightsTimeoutError(
                f"Waited {timeout_secs:.1f} s for {wanted} of the weights to arrive; the newest"
                f" that has arrived is {self.at_hand()}."
            )

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """Returns the newest version that has arrived; see `ends_interface.Puller`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.at_hand() >= at_least or self._error is not None, timeout_secs
            )
            self._raise_error()
            return self.at_hand()

    def at_hand(self) -> int:
        """Returns the newest version that has arrived, -1 if there is none; does not wait."""
        return -1 if self._arrived is None else self._arrived[0]

    def close(self) -> None:
        """Ends the thread, after the fetch under way, and frees all resources."""
        self._closed = True
        self._thread.join()
        self._puller.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._closed:
                wanted = self.at_hand() + 1
                if self._puller.newest(wanted, _SLICE_SECS) < wanted:
                    time.sleep(0)  # `newest` has waited, unless the run is being stopped.
                    continue
                began = time.monotonic()
                try:
                    arrived = self._puller.pull(at_least=wanted, timeout_secs=_SLICE_SECS)
                except WeightsTimeoutError:
                    continue
                self._on_arrival(arrived[0], time.monotonic() - began)
                with self._changed:
                    self._arrived = arrived
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
