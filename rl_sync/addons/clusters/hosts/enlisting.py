"""Joining of a machine: it calls the launcher until that has a place for it."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Sequence

from rl_sync.addons.clusters.hosts.host_calls import AskTime, Enlist, Enlisted, Refused
from rl_sync.addons.clusters.hosts.host_site import JoinError
from rl_sync.addons.clusters.hosts.release import release, software
from rl_sync.cluster.rpc import PeerLostError, RefusedError, RemoteError, RpcClient
from rl_sync.roles.exit_status import FAILED, MACHINE_LOST

_CALL_SECS = 10.0
_RETRY_SECS, _REFUSED_SECS = 0.5, 1.0
_TELL_SECS = 15.0
_PINGS = 5


class Enlisting:
    """Calls of a machine that wants to join a run.

    Args:
      run: the launcher's `host:port` for machines.
      client: client of the launcher.
      names: processes that this machine runs.
      address: address of this machine, as others reach it.
      wait_secs: the longest that the launcher cannot be reached, or has no place.
      asked_to_end: set if this machine is asked to end.

    Attributes:
      behind_secs: how much this clock was behind the launcher's when it joined last.
    """

    def __init__(
        self,
        run: str,
        client: RpcClient,
        names: Sequence[str],
        address: str,
        wait_secs: float,
        asked_to_end: threading.Event,
    ):
        self._run, self._client = run, client
        self._names, self._address = tuple(names), address
        self._wait_secs, self._asked_to_end = wait_secs, asked_to_end
        self._identity = secrets.token_hex(8)
        self._has_joined = False
        self._since = self._told = 0.0
        self.behind_secs = 0.0

    def join(self) -> Enlisted | None:
        """Joins the run as soon as the launcher is up; returns None if asked to end before.

        Raises:
          JoinError: the launcher is another's, has no place for this machine, or does not answer.
        """
        self._since = self._told = time.monotonic()
        while not self._asked_to_end.is_set():
            try:
                answer = self._ask()
            except PeerLostError as error:
                self._check_wait(error)
                self._tell(f"Waiting for the launcher at {self._run}", str(error))
                self._asked_to_end.wait(_RETRY_SECS)
                continue
            if isinstance(answer, Refused):
                if answer.is_final or self._waited_secs > self._wait_secs:
                    raise JoinError(f"{answer.why}.")
                self._tell("Waiting to join", f"{answer.why}.")
                self._asked_to_end.wait(_REFUSED_SECS)
                continue
            self._has_joined = True
            names = ", ".join(self._names)
            print(f"Joined the run at {self._run} as {names}.", flush=True)
            return answer
        return None

    @property
    def _waited_secs(self) -> float:
        return time.monotonic() - self._since

    def _ask(self) -> Enlisted | Refused:
        """Asks the launcher for a place."""
        try:
            self.behind_secs, error_secs = self._clock()
            answer: Enlisted | Refused = self._client.call(
                Enlist(
                    self._names,
                    self._address,
                    release(),
                    software(),
                    self.behind_secs,
                    error_secs,
                    socket.gethostname(),
                    self._identity,
                ),
                _CALL_SECS,
            )
        except RefusedError as error:
            raise JoinError(
                f"The launcher at {self._run} belongs to another run: its secret is another than"
                " this process has (RL_SYNC_SECRET)."
            ) from error
        except RemoteError as error:
            raise JoinError(
                f"{self._run} is not the address at which machines join, or its launcher has"
                f" another version of rl_sync: give the one that the launcher prints. {error}"
            ) from error
        return answer

    def _clock(self) -> tuple[float, float]:
        """Returns how much this clock is behind the launcher's, and the error, in seconds.

        The exchange with the shortest round trip counts, as in NTP (RFC 5905).
        """
        found = []
        for _ in range(_PINGS):
            before = time.monotonic()
            here = time.time()
            there = self._client.call(AskTime(), _CALL_SECS)
            trip = time.monotonic() - before
            found.append((trip / 2, there - here - trip / 2))
        error, behind = min(found)
        return behind, error

    def _check_wait(self, error: PeerLostError) -> None:
        if self._waited_secs > self._wait_secs:
            raise JoinError(
                f"No launcher has answered at {self._run} for {self._waited_secs:.0f} s."
                " Start the run with launch.port set to this port, and let firewalls pass the ports"
                f" of launch.ports. The last attempt: {error}",
                MACHINE_LOST if self._has_joined else FAILED,
            ) from error

    def _tell(self, waits: str, why: str) -> None:
        if time.monotonic() - self._told > _TELL_SECS:
            self._told = time.monotonic()
            print(f"{waits} for {self._waited_secs:.0f} s: {why}", flush=True)
