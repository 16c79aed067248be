"""Runs the trainer and the explorers as threads of one process, on its local devices."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence

import jax

from rl_sync.cluster.process_resources import Addresses, Resources
from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.stop_progress import StopProgress
from rl_sync.cluster.team import Team
from rl_sync.cluster.user_errors import explained, log_failure
from rl_sync.messages.events import StopRequested
from rl_sync.messages.master_calls import AskStatus, Happened
from rl_sync.role_names import TRAINER, split
from rl_sync.roles.assembly import build, wiring
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.transfers.local import LocalPublisher

_LOOK_SECS = 0.1
_log = logging.getLogger(__name__)


def run_colocated(settings: RunSettings, addresses: Addresses) -> None:
    """Runs the trainer and all explorers, each in its own thread.

    When one fails, the run is stopped, and a trainer that has begun to train saves its state.

    Raises:
      ConfigError: there are too few devices.
      Exception: error of the first role that failed.
    """
    # A CPU is one device unless JAX gets another number before it starts. Accelerators need no
    # setting.
    needed = [settings.mesh_of(role).devices for role in settings.roles]
    wanted = max(needed) if settings.launch.share_devices else sum(needed)
    jax.config.update("jax_num_cpu_devices", wanted)
    run_on(settings, addresses, jax.local_devices())


def run_on(settings: RunSettings, addresses: Addresses, devices: Sequence[jax.Device]) -> None:
    """Does what `run_colocated` does, on given devices; raises the same errors."""
    wiring.load_task(settings)  # The threads share the task, so it is loaded before they start.
    layouts = {
        role: settings.layout(role, settings.mesh_of(role).mesh(own))
        for role, own in allot(settings, devices).items()
    }
    weights = None
    if settings.hands_over:
        weights = LocalPublisher(
            settings.explorers,
            keep=settings.schedule.versions_kept,
            evaluated_every=settings.explorers_evaluate_every,
        )
    work: dict[str, Callable[[], None]] = {}
    for number, role in enumerate(settings.roles[:-1], start=1):
        resources = Resources(layouts[role], Team(), [0], weights)
        work[role] = functools.partial(build.run_explorer, settings, addresses, number, resources)
    resources = Resources(layouts[TRAINER], Team(), [0], weights)
    work[TRAINER] = functools.partial(build.run_trainer, settings, addresses, resources)
    RoleThreads(settings, addresses.master).run(work)


def allot(settings: RunSettings, devices: Sequence[jax.Device]) -> dict[str, list[jax.Device]]:
    """Chooses each role's devices: its own if there are enough, otherwise the first, shared ones.

    Raises:
      ConfigError: the mesh of a role needs more devices than there are.
    """
    needed = {role: settings.mesh_of(role).devices for role in [TRAINER, *settings.roles[:-1]]}
    role, most = max(needed.items(), key=lambda item: item[1])
    if most > len(devices):
        raise ConfigError(
            f"{split(role)[0]}.mesh needs {most} devices, but this process has {len(devices)}:"
            " use a smaller mesh, or give the process more devices."
        )
    if settings.launch.share_devices or sum(needed.values()) > len(devices):
        return {role: list(devices[:count]) for role, count in needed.items()}
    given, start = {}, 0
    for role, count in needed.items():
        given[role] = list(devices[start : start + count])
        start += count
    return given


@dataclasses.dataclass
class RoleThreads:
    """Threads of the roles, which end together.

    After a failure they wait for no role that has nothing to save: neither for explorers, nor for a
    trainer that has not begun to train.
    """

    settings: RunSettings
    master: str
    _failures: list[Exception] = dataclasses.field(default_factory=list)
    _learns: bool = False

    def run(self, work: dict[str, Callable[[], None]]) -> None:
        """Runs all threads to their end; raises the first failure.

        After a failure it waits only for a trainer that has a state to save.
        """
        threads = [
            threading.Thread(target=self._do, args=item, name=item[0], daemon=True)
            for item in work.items()
        ]
        for thread in threads:
            thread.start()
        while not self._failures and any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(timeout=_LOOK_SECS)
        if self._failures:
            self._let_save([thread for thread in threads if thread.name == TRAINER])
            raise self._failures[0]

    def _let_save(self, trainers: Sequence[threading.Thread]) -> None:
        """Waits until a trainer that is training has ended, as long as it makes progress."""
        if not self._learns:
            return
        launch, master = self.settings.launch, self._master()
        movement = StopProgress(launch.wait_secs)
        while any(thread.is_alive() for thread in trainers):
            try:
                movement.see(master.call(AskStatus(), launch.call_secs))
            except (PeerLostError, RemoteError):
                movement.see(None)
            if movement.still_secs > launch.stop_secs:
                _log.error(
                    "The trainer did not end, and made no progress for launch.stop_secs=%g.",
                    launch.stop_secs,
                )
                break
            time.sleep(_LOOK_SECS)
        master.close()

    def _master(self) -> RpcClient:
        return RpcClient(self.master, "master", secret_of(self.settings.workdir))

    def _do(self, role: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            error = explained(error)
            log_failure(_log, role, error)
            self._stop(f"{role} failed")
            self._failures.append(error)

    def _stop(self, reason: str) -> None:
        """Stops the run, and records whether its trainer has begun to train."""
        master = self._master()
        try:
            call_secs = self.settings.launch.call_secs
            self._learns = master.call(AskStatus(), call_secs).phase != "start"
            master.call(Happened(StopRequested(reason)), call_secs)
        except PeerLostError as lost:
            _log.error("The run cannot be stopped in order: %s", lost)
        finally:
            master.close()
