"""`run`: starts all roles of a run from this machine, shows their status, and ends them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple, TypeVar

from rl_sync.checkpoints.memory_tier import remove_memory_folder
from rl_sync.cluster import compilation_cache
from rl_sync.cluster.gpus import machine_gpus
from rl_sync.cluster.host_names import own_address
from rl_sync.cluster.rpc import PeerGoneError, PeerLostError, RemoteError, RpcClient
from rl_sync.cluster.secret import SECRET
from rl_sync.cluster.topology import members_of, programs_of
from rl_sync.display.live import LiveDisplay
from rl_sync.isolation.machine_limits import allow_open_files, check_limits, limit_met
from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands.page import PageBeside
from rl_sync.launcher.processes import run_directory as work
from rl_sync.launcher.processes import run_text, stopping
from rl_sync.launcher.processes.hang_watch import HangWatch
from rl_sync.launcher.processes.run_processes import RunFailedError, RunProcesses
from rl_sync.launcher.processes.supervisor import Death, Supervisor, likeliest_first
from rl_sync.messages.call import Call
from rl_sync.messages.events import FORMED_ANEW, ExplorerDied, GroupsRefused, StopRequested
from rl_sync.messages.master_calls import AskBuffered, AskStatus, CloseLedger, Happened, TrainerDied
from rl_sync.messages.run_result import Summary
from rl_sync.messages.run_status import RunStatus
from rl_sync.records import alarms
from rl_sync.records.backends.backend_catalog import check_installed
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.role_names import MASTER, is_explorer, role_of
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.replay_tables import check_replay
from rl_sync.roles.exit_status import DEVICE_FULL, ENDED, FAILED, MACHINE_LOST
from rl_sync.roles.explorer.engine_check import check_engines
from rl_sync.roles.explorer.episode_wiring import check_environment
from rl_sync.roles.restart_policy import (
    REPLAY,
    EndRun,
    Restart,
    RestartExplorer,
    RestartMaster,
    RestartPrograms,
    RestartReplay,
    RestartTrainer,
    RunFacts,
    decide,
)
from rl_sync.roles.teaching.served_teacher import check_teacher_server
from rl_sync.roles.teaching.teacher_models import teacher_models
from rl_sync.roles.trainer.experience_pipeline import pipeline_of
from rl_sync.settings.launch_settings import JOIN
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

R = TypeVar("R")
_LOOK_SECS = 0.1
_SHOW_SECS = 0.5
_ANSWER_SECS = 10.0


class _Absence(NamedTuple):
    """Death of a role.

    Attributes:
      since_secs: time when it was noticed, by the monotonic clock.
      at_secs: the same time in Unix seconds.
      why: reason.
      handed_over: whether its work in flight goes on.
    """

    since_secs: float
    at_secs: float
    why: str
    handed_over: bool = False


class LocalRun:
    """A run, whose processes are children of this one.

    Args:
      settings: the run's settings; its work directory is locked and prepared.
      continues: whether the master goes on from the journal of an earlier attempt.
    """

    def __init__(self, settings: RunSettings, continues: bool = False):
        self._settings = settings
        self._workdir = Workdir(settings.workdir)
        self._supervisor = Supervisor()
        self._processes = RunProcesses(settings, self._supervisor, continues)
        self._vigil = HangWatch(settings, self._supervisor)
        self._master: RpcClient | None = None
        self._signals: list[int] = []
        self._is_closed = False
        self._last: RunStatus | None = None
        self._restarts = collections.defaultdict[str, list[float]](list)
        self._away: dict[str, _Absence] = {}

    def processes(self) -> dict[str, int]:
        """Returns the process group of each process that runs, by its name."""
        return self._supervisor.groups()

    @property
    def has_begun(self) -> bool:
        """True once the master was heard; the death of a server before that ends the run."""
        return self._last is not None

    def run(self) -> int:
        """Runs to the end.

        Returns:
          The exit status: 0, or 128 plus the number of the signal that stopped it.

        Raises:
          ConfigError: a port is taken.
          RunFailedError: a role died, or a process could not be started.
        """
        before = {number: signal.signal(number, self._interrupt) for number in _REASONS}
        status = FAILED
        try:
            self._master = self._processes.start()
            self._watch()
            status = self._finish()
            return status
        finally:
            if self._is_closed:
                stopping.await_backends(self._settings, self._supervisor, self._signals)
            self._supervisor.end_all()
            for role in [*self._away]:
                self._record_restart(role, None)
            self._processes.close(status)
            remove_memory_folder(self._workdir)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals.append(number)

    def _watch(self) -> None:
        """Waits until all roles have ended well, one has died, or the user stops the run."""
        assert self._master is not None
        ready, shown = False, 0.0
        roles = [member.name for member in members_of(self._settings)]
        with LiveDisplay() as display, self._page() as page:
            while True:
                # Until it is ready, the replay server reports its own failures.
                ready = ready or self._processes.replay_ready()
                self._processes.look()
                starting = () if ready else ("replay",)
                deaths = self._supervisor.deaths(but_not=starting) or self._vigil.look(self._master)
                if deaths:
                    self._follow(deaths)
                elif not self._supervisor.living(roles):
                    break
                if self._signals:
                    break
                self._note_returns()
                if time.monotonic() - shown > _SHOW_SECS and (status := self._status()):
                    display.update(status)
                    shown = time.monotonic()
                if page is not None and (news := page.news()):
                    print(f"\n{news}")
                time.sleep(_LOOK_SECS)
        if self._signals:
            self._give_up()

    def _page(self) -> contextlib.AbstractContextManager[PageBeside | None]:
        launch = self._settings.launch
        if not launch.page:
            return contextlib.nullcontext()
        return PageBeside(self._workdir, launch.page_port)

    def _follow(self, deaths: Sequence[Death]) -> None:
        """Executes what the policy decides about deaths.

        Raises:
          RunFailedError: the run cannot go on.
        """
        noticed_secs = time.time()
        self._status()  # The last known one may be older than the phase.
        facts = RunFacts(
            is_elastic=self._settings.is_elastic,
            phase=None if self._last is None else self._last.phase,
            restarts=self._settings.launch.restarts,
            earlier={role: tuple(times) for role, times in self._restarts.items()},
            now_secs=time.monotonic(),
        )
        decision = decide(
            facts,
            [death.name for death in deaths],
            ended=[death.name for death in deaths if self._is_final(death)],
            killed=[death.name for death in deaths if death.was_killed],
            handed_over=[death.name for death in deaths if death.handed_over],
        )
        if isinstance(decision, EndRun):
            self._fail(deaths)
            return
        for restart in decision:
            if restart.role in self._away:
                self._record_restart(restart.role, None)
            why = next(death for death in deaths if role_of(death.name) == restart.role)
            if not self._start_again(restart, f"{why}. It is started again."):
                self._fail(deaths)
            self._away[restart.role] = _Absence(
                facts.now_secs, noticed_secs, str(why), why.handed_over
            )
            if not isinstance(restart, RestartMaster | RestartReplay):
                self._record_restart(restart.role, None)  # Its spans tell when it works again.
            if why.handed_over:
                print(f"\n{why}. It is started again.", flush=True)
                continue
            self._restarts[restart.role].append(facts.now_secs)
            count, most = facts.recent(restart.role) + 1, facts.restarts
            print(f"\n{why}. It is started again ({count} of {most} times an hour).", flush=True)

    def _is_final(self, death: Death) -> bool:
        """Says whether a process ended for a reason that a restart does not change.

        Other explorers go on without one whose machine was lost, which is awaited again.
        """
        if death.status == MACHINE_LOST:
            has_others = self._settings.is_elastic and self._settings.explorers > 1
            return not (has_others and is_explorer(role_of(death.name)))
        return death.status in (ENDED, DEVICE_FULL)

    def _start_again(self, restart: Restart, told: str) -> bool:
        """Executes a restart; returns False if it is not possible.

        Args:
          told: line for the display.
        """
        programs = [restart.role]
        if isinstance(restart, RestartPrograms):
            programs = programs_of(self._settings)
        members = [one.name for one in members_of(self._settings) if one.program in programs]
        self._supervisor.end([restart.role, *members])
        try:
            match restart:
                case RestartMaster():
                    self._processes.restart_master()
                case RestartReplay():
                    self._processes.restart_replay()
                case RestartExplorer(number, _):
                    self._call_master(Happened(ExplorerDied(number)))
                    self._processes.start_programs(programs)
                case RestartTrainer():
                    self._call_master(TrainerDied(told))
                    self._processes.start_programs(programs)
                case RestartPrograms():
                    self._forget_all(told)
                    self._processes.start_programs(programs)
        except PeerLostError:
            return False
        return True

    def _forget_all(self, told: str) -> None:
        """Tells the master that the trainer and all explorers died.

        Raises:
          PeerLostError: the master does not answer.
        """
        self._call_master(TrainerDied(told))
        for number in range(1, self._settings.explorers + 1):
            self._call_master(Happened(ExplorerDied(number)))
        if self._settings.regenerates_buffered:
            buffered = self._call_master(AskBuffered()).lease_ids
            self._call_master(Happened(GroupsRefused(tuple(buffered), FORMED_ANEW)))

    def _call_master(self, call: Call[R]) -> R:
        """Calls the master; waits for one that was just started again.

        Raises:
          PeerLostError: it does not answer, or has died.
        """
        assert self._master is not None
        deadline = time.monotonic() + self._settings.launch.master_lost_secs
        while True:
            try:
                return self._master.call(call, _ANSWER_SECS)
            except PeerGoneError:
                if time.monotonic() > deadline or not self._supervisor.living([MASTER]):
                    raise
                time.sleep(_LOOK_SECS)

    def _note_returns(self) -> None:
        """Records the restarts of servers that serve again."""
        for role, absence in [*self._away.items()]:
            server = self._processes.server
            if role == REPLAY:
                is_back = server is not None and server.is_ready
            else:
                is_back = self._status() is not None
            if is_back:
                self._record_restart(role, time.monotonic() - absence.since_secs)

    def _record_restart(self, role: str, lost_secs: float | None) -> None:
        """Records that a role was started again.

        Args:
          lost_secs: time that it was away; None if that is not known.
        """
        absence = self._away.pop(role)
        lost = {} if lost_secs is None else {"lost_secs": lost_secs}
        if absence.handed_over:
            lost = {**lost, "handed_over": True}
        with contextlib.suppress(OSError):  # Nothing depends on this record.
            lines = JsonLinesWriter(self._workdir.restarts, vital=False)
            lines.write({"time": absence.at_secs, "role": role, "why": absence.why, **lost})
            lines.close()

    def _status(self) -> RunStatus | None:
        assert self._master is not None
        try:
            status = self._master.call(AskStatus(), _ANSWER_SECS)
            counts = {role: len(times) for role, times in self._restarts.items()}
            restarts = alarms.Evidence(alarms.AlarmLimits(), restarts=counts)
            more = tuple(alarms.raised(restarts))
            self._last = dataclasses.replace(status, alarms=(*status.alarms, *more))
            return self._last
        except (PeerLostError, RemoteError):
            return None  # Not up yet; the supervisor notices a death.

    def _give_up(self) -> None:
        """Ends the run at the user's request, immediately if there is nothing new to save."""
        reason = _REASONS[signal.Signals(self._signals[0])]
        if stopping.is_nothing_new(self._status()):
            print(f"\nStopping: {reason}.")
        else:
            self._stop(reason, math.inf)

    def _stop(self, reason: str, most_secs: float) -> None:
        """Asks every role to save and end, and waits for them; a second Ctrl-C ends the wait.

        Args:
          most_secs: see `StopProgress`.
        """
        assert self._master is not None
        try:
            self._master.call(Happened(StopRequested(reason)), _ANSWER_SECS)
        except PeerLostError:
            return
        signals = len(self._signals)
        print(
            f"\nStopping: {reason}. {stopping.under_way(self._status())}."
            f" Ctrl-C{' again' if signals else ''} ends the wait.",
            flush=True,
        )
        why_not = stopping.await_end(
            self._settings,
            self._supervisor,
            self._status,
            is_interrupted=lambda: len(self._signals) > signals,
            most_secs=most_secs,
        )
        if why_not:
            print(f"Not waiting any more: {why_not}.", flush=True)

    def _fail(self, deaths: Sequence[Death]) -> None:
        """Handles the death of a role: lets other roles save, then raises `RunFailedError`."""
        assert self._master is not None
        deaths = [*self._vigil.suspects(self._master, self._processes.server), *deaths]
        before = ""
        if all(death.name != "master" for death in deaths):
            # A trainer that lost a process cannot save.
            savers = stopping.SAVERS
            whole = all(role_of(death.name) not in savers for death in deaths)
            wait_secs = self._settings.launch.wait_secs if whole else 0.0
            self._stop(f"{deaths[0].name} {'hangs' if deaths[0].hung else 'died'}", wait_secs)
            with contextlib.suppress(PeerLostError, RemoteError):  # Not the failure to report.
                reason = self._close().result.failed
                before = f"{reason}\nThen " if reason else ""
        # The death that caused the others may be noticed only now. The master and the replay
        # server, if they lived until now, were asked to end.
        seen = [*(death.name for death in deaths), "master", "replay"]
        first, *others = likeliest_first([*deaths, *self._supervisor.deaths(but_not=seen)])
        died = first.report(others, is_explained=bool(before))
        if full := [death.name for death in (first, *others) if death.status == DEVICE_FULL]:
            died += f"\n{run_text.memory_advice(self._settings, full)}"
        is_lost = any(death.status == MACHINE_LOST for death in deaths)
        raise RunFailedError(
            f"{before}{died}\n{self._how_to_go_on()}", MACHINE_LOST if is_lost else FAILED
        )

    def _how_to_go_on(self) -> str:
        return stopping.how_to_go_on(self._settings, self._last)

    def _close(self) -> Summary:
        summary = self._call_master(CloseLedger())
        self._is_closed = True
        return summary

    def _finish(self) -> int:
        stopped = 128 + self._signals[0] if self._signals else 0
        if stopped and stopping.is_nothing_new(self._last):
            print(self._how_to_go_on())
            return stopped
        summary = None
        while summary is None:
            try:
                summary = self._close()
            except (PeerLostError, RemoteError) as error:
                self._supervisor.wait(["master"], _LOOK_SECS)  # It may have died just now.
                if deaths := self._supervisor.deaths():
                    self._follow(deaths)
                    continue
                raise RunFailedError(
                    f"The master did not close the run's ledger. {error}\n"
                    f"Its log: {self._workdir.log('master')}\n"
                    f"{self._how_to_go_on()}"
                ) from error
        print(run_text.final_report(self._settings, summary))
        if reason := summary.result.failed:
            raise RunFailedError(f"{reason}\n{self._how_to_go_on()}")
        if stopped:
            print(self._how_to_go_on())
        return stopped


_REASONS = {
    signal.SIGINT: "interrupted by the user",
    signal.SIGTERM: "asked to terminate (SIGTERM)",
}


def _check_replay(settings: RunSettings, address: str) -> None:
    """Raises ConfigError if the user's replay server cannot serve the run."""
    with ReplayClient(address) as replay:
        try:
            check_replay(settings, replay)
        except ReplayError as error:
            raise ConfigError(
                f"{error} Start it first, or leave out --config.replay.address."
            ) from error


def execute(arguments: Arguments) -> int:
    """Runs a config; returns the exit status.

    Raises:
      ConfigError: the config is invalid.
    """
    assert arguments.config is not None
    try:
        return start(arguments.config.to_dict())
    except RunFailedError as error:
        why, status = str(error), error.status
    except (OSError, MemoryError) as error:
        if (met := limit_met(error)) is None:
            raise
        why, status = met, FAILED
    print(f"\nThe run failed: {why}", file=sys.stderr)
    return status


def check_backends(settings: RunSettings) -> None:
    """Raises ConfigError if the package of one of `observe.backends` is not installed."""
    try:
        check_installed(settings.observe.chosen_backends)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def start(
    config: ConfigValues,
    beside: Callable[[LocalRun], contextlib.AbstractContextManager[None]] = (
        lambda run: contextlib.nullcontext()
    ),
) -> int:
    """Validates a resolved config and runs it on this machine; returns the exit status.

    Args:
      config: the config.
      beside: a context in which the run is made.
    """
    settings = work.settings_of(config)
    allow_open_files()
    try:
        check_limits()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    gpus = machine_gpus(os.environ)
    gpus.check()
    if gpus.unused:
        print(gpus.unused, file=sys.stderr)
    check_backends(settings)
    task = wiring.load_task(settings)  # Errors show here, not in the logs of five processes.
    check_environment(settings, task)
    wiring.check_reward(task)
    teacher_models(settings, task)
    check_teacher_server(settings, task)
    check_engines(settings)
    wiring.check_reward_servers(settings, task)
    pipeline_of(settings.experience.pipeline, task)
    for note in wiring.try_reward(settings, task):
        print(note, file=sys.stderr)
    cards = run_text.cards_of_run(gpus.usable)
    settings = run_text.fill_gpus(settings, task, cards)
    run_text.print_gpu_warnings(settings, task, cards)
    if settings.launch.host:
        own_address("launch.host", settings.launch.host)
    if JOIN in settings.launch.elsewhere.values() and not os.environ.get(SECRET):
        raise ConfigError(
            f"launch.hosts={settings.launch.hosts}: machines that join need the run's secret. Give"
            f" this command and theirs the same {SECRET}, as by `export"
            f" {SECRET}=$(openssl rand -hex 32)`."
        )
    if settings.replay.address:
        _check_replay(settings, settings.replay.address)
    compilation_cache.check(settings.launch.compilation_cache, os.environ)
    workdir = Workdir(settings.workdir)
    with work.held(workdir):
        resumed = work.prepare(workdir, settings, task)
        print(run_text.opening(settings, resumed))
        print(f"{task.describe()}\n")
        continues = resumed is not None and resumed.continues
        local = LocalRun(settings, continues)
        with beside(local):
            return local.run()
