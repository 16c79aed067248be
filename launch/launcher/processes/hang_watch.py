"""Detects hung processes, which have been silent for too long, and kills them."""

from __future__ import annotations

import time

from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.launcher.processes.supervisor import Death, Supervisor
from rl_sync.messages.master_calls import AskSilences
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.replay.server_process import ReplayServerError, ServerProcess
from rl_sync.role_names import TOGETHER
from rl_sync.settings.run_settings import RunSettings

_EVERY_SECS = 2.0
_ANSWER_SECS = 5.0
# After a failure, a process with this shorter silence is suspected to be the cause.
_SUSPECT_SECS = 10.0


class HangWatch:
    """Watches for hung processes of a run.

    Args:
      settings: the run.
      supervisor: the supervisor of the processes.
    """

    def __init__(self, settings: RunSettings, supervisor: Supervisor):
        self._settings, self._supervisor = settings, supervisor
        self._wait_secs = settings.launch.wait_secs
        self._next_secs = 0.0
        self._answered_secs: float | None = None

    def look(self, master: RpcClient) -> list[Death]:
        """Kills processes that are silent for `launch.wait_secs`; most calls check nothing."""
        if time.monotonic() < self._next_secs:
            return []
        hung = self._silent(master, self._wait_secs)
        self._next_secs = time.monotonic() + min(_EVERY_SECS, self._wait_secs / 10)
        return hung

    def suspects(self, master: RpcClient, replay: ServerProcess | None) -> list[Death]:
        """Kills silent processes that may have caused other deaths."""
        hung = self._silent(master, min(_SUSPECT_SECS, self._wait_secs / 2))
        return hung if replay is None else [*hung, *self._replay(replay)]

    def _silent(self, master: RpcClient, at_least_secs: float) -> list[Death]:
        try:
            told = master.call(AskSilences(at_least_secs), _ANSWER_SECS)
        except PeerLostError:
            return self._master(at_least_secs)
        except RemoteError:
            return []
        self._answered_secs = time.monotonic()
        found = []
        for silence in told:
            name = TOGETHER if self._settings.launch.colocate else silence.name
            found.append(self._supervisor.end_hung(name, str(silence)))
        return [death for death in found if death is not None]

    def _master(self, at_least_secs: float) -> list[Death]:
        if self._answered_secs is None:
            return []  # It was not up yet.
        silent_secs = time.monotonic() - self._answered_secs
        if silent_secs < at_least_secs:
            return []
        why = f"master hangs, or was stopped: it has not answered for {silent_secs:.0f} s"
        death = self._supervisor.end_hung("master", why)
        return [] if death is None else [death]

    def _replay(self, server: ServerProcess) -> list[Death]:
        try:
            server.wait_ready(0.0)
            with ReplayClient(server.address) as client:
                client.info(_ANSWER_SECS)
        except ReplayServerError:
            return []  # It was not up yet.
        except ReplayError:
            why = (
                f"replay server (process {server.popen.pid}) hangs, or was stopped: it does not"
                f" answer within {_ANSWER_SECS:.0f} s"
            )
            death = self._supervisor.end_hung("replay", why)
            return [] if death is None else [death]
        return []
