"""Session of a role's process: settings, a connection to the master, spans, heartbeats.

In a program of several processes, only the first writes spans. The others agree with it, but each
sends its own heartbeats.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rl_sync.cluster.heartbeats import SILENT_SECS
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.rpc import PeerGoneError, PeerLostError, RemoteError, RpcClient
from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.team import Team
from rl_sync.display.live import describe_activity
from rl_sync.messages.call import Call
from rl_sync.messages.master_calls import AskSilences, Heartbeat, Leave, Resumed
from rl_sync.messages.run_status import RoleStatus, Silence
from rl_sync.ports.clock_port import Clock, SystemClock
from rl_sync.records.json_lines import JsonObject, plain
from rl_sync.records.spans import SpanKind, SpanRecorder
from rl_sync.records.usage import UsageRecorder
from rl_sync.role_names import process_name
from rl_sync.settings.run_settings import RunSettings
from rl_sync.weights.agreement import Agree, alone
from rl_sync.workdir import Workdir

_LEAST_HEARTBEAT_SECS, _MOST_HEARTBEAT_SECS = 0.5, 2.0
_HEARTBEATS_A_SECOND = 500
_RETRY_SECS = 0.1
_SHOWN = ("step", "version", "reason", "for_whom")
_log = logging.getLogger(__name__)

T = TypeVar("T")
_agree_of_thread: contextvars.ContextVar[Agree] = contextvars.ContextVar("agree of this thread")


def heartbeat_secs(explorers: int) -> float:
    """Returns the seconds between two heartbeats of a process.

    Half a second, and longer with more than 250 explorers, so that the master gets 500 heartbeats a
    second, of which each takes it up to half a millisecond. Two seconds at most: after five seconds
    of silence a process is named in errors.
    """
    secs = explorers / _HEARTBEATS_A_SECOND
    return min(_MOST_HEARTBEAT_SECS, max(_LEAST_HEARTBEAT_SECS, secs))


class RunStoppedError(Exception):
    """The run is being stopped: the role must save its state and leave."""


class HandOverError(Exception):
    """The process was asked to end: it must hand over its work in flight, and leave."""


class Session:
    """One process of a program in a run; usable as a context manager.

    Only the thread that runs the program may call its methods, with two exceptions: any thread may
    call `tell`, and other threads of the first process may call all methods within `alone`.

    Args:
      settings: settings of the run.
      role: `trainer`, `explorer1`, `explorer2`, ….
      master: client of the master, which is closed with the session.
      team: processes of the program.

    Attributes:
      clock: time and threads of the role.
    """

    clock: Clock = SystemClock()
    _leaves: bool = False

    def __init__(self, settings: RunSettings, role: str, master: RpcClient, team: Team):
        self.settings = settings
        self.role = role
        self.name = process_name(role, team.process)
        path = Workdir(settings.workdir).spans_of(role) if team.leads else None
        self.spans = SpanRecorder(path, role)
        self.facts: JsonObject = {}
        self.team = team
        self.secret = secret_of(settings.workdir)
        self._master = master
        self._stop: str | None = None
        self._progress: Callable[[], tuple[int, int | None]] | None = None
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    @property
    def leads(self) -> bool:
        """True in the process that talks to other programs."""
        return self.team.leads

    def agree(self, what: str, thunk: Callable[[], T]) -> T:
        """Returns the first process's result of a function; see `Agree`."""
        return _agree_of_thread.get(self.team.agree)(what, thunk)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lets a thread of the first process call and wait without agreement with the others."""
        assert self.leads, "only the first process talks to the master"
        with self.agreeing(alone):
            yield

    @contextlib.contextmanager
    def agreeing(self, agree: Agree) -> Iterator[None]:
        """Lets a thread call and wait in agreement with the same thread of the other processes.

        Args:
          agree: the thread's own; see `Team.thread`.
        """
        before = _agree_of_thread.set(agree)
        try:
            yield
        finally:
            _agree_of_thread.reset(before)

    def hand_out(self, what: str, thunk: Callable[[], T], share: Callable[[T, int], T]) -> T:
        """Returns the first process's result, or this process's share of it; see `Team`."""
        return self.team.hand_out(what, thunk, share)

    def call(self, call: Call[T]) -> T:
        """Calls the master, with the deadline from the settings."""
        return self.agree(f"call {type(call).__name__}", lambda: self.call_alone(call))

    def tell(self, call: Call[T]) -> T | None:
        """Calls the master from the first process only; for any thread.

        Returns:
          The result in the first process, None in any other.
        """
        return self.call_alone(call) if self.leads else None

    def call_alone(self, call: Call[T]) -> T:
        """Calls the master for this process alone, without agreement with the others.

        A master that has ended may be started again, and knows then what it knew before. So the
        call is sent again until it answers; every call may come twice.

        Raises:
          PeerLostError: the master does not answer, or has ended and is not back within
            `launch.master_lost_secs`.
        """
        gone_since = None
        while True:
            try:
                return self._master.call(call, self.settings.launch.call_secs)
            except PeerGoneError:
                gone_since = gone_since or time.monotonic()
                if time.monotonic() - gone_since > self.settings.launch.master_lost_secs:
                    raise
                if self._closed.wait(_RETRY_SECS):
                    raise

    def resumed(self, step: int, sft_step: int | None = None) -> None:
        """Marks in all records that the run resumes from a snapshot.

        Args:
          step, sft_step: see `rl_sync.records.resumption.mark`.
        """
        self.spans.resume(step, sft_step)
        self.call(Resumed(step, sft_step))

    def check(self) -> None:
        """Raises `RunStoppedError` if the run is being stopped.

        Raises:
          HandOverError: this process alone must leave; see `leave`.
        """
        self.agree("check", self._check)

    def leave(self) -> None:
        """Lets the next check of this process raise `HandOverError`; for a handler of signals."""
        self._leaves = True

    @property
    def lasts(self) -> bool:
        """False once the run is being stopped; for the first process only."""
        return self._stop is None

    def _check(self) -> None:
        if self._stop is not None:
            raise RunStoppedError(self._stop)
        if self._leaves:
            raise HandOverError(f"{self.role} was asked to end")

    def deadline(self, what: str, whom: str) -> Deadline:
        """Starts a deadline for one wait, from the settings."""
        return Deadline(self, what, whom, self.settings.launch.wait_secs)

    @contextlib.contextmanager
    def showing(self, progress: Callable[[], tuple[int, int | None]]) -> Iterator[None]:
        """Shows the progress of an activity on the display.

        Args:
          progress: returns the number of finished parts, and of all parts if that is known; called
            from another thread.
        """
        before, self._progress = self._progress, progress
        try:
            yield
        finally:
            self._progress = before

    def settle(self) -> None:
        """Says that all programs are compiled; see `parallel_imports.settle`."""
        settle()

    def status(self) -> RoleStatus:
        """Returns the status of this role for the live display."""
        current = self.spans.current
        activity, since, waits_for = "idle", 0.0, None
        if current is not None:
            activity, since = str(current.kind), current.lasted_secs
            waits_for = current.reason if current.kind is SpanKind.WAIT else None
        facts = dict(self.facts)
        # The open span knows its step, except in SFT, whose span covers many steps.
        if current is not None and current.kind is not SpanKind.SFT:
            facts["step"] = current.attributes.get("step", facts.get("step"))
        if self._progress is not None and waits_for is None:
            facts["done"], facts["of"] = self._progress()
        return RoleStatus(
            role=self.role, activity=activity, since_secs=since, waits_for=waits_for, **facts
        )

    def _beat(self) -> None:
        lost_since = None
        usage = UsageRecorder(Workdir(self.settings.workdir).usage / f"{self.name}.jsonl")
        while not self._closed.wait(heartbeat_secs(self.settings.explorers)):
            usage.look(self._activity)
            try:
                sign = Heartbeat(
                    self.status(), self.name, os.getpid(), self._doing(), self.spans.spent
                )
                stop = self._master.call(sign, self.settings.launch.call_secs)
                self._stop, lost_since = stop, None
            except PeerLostError as error:
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > self.settings.launch.master_lost_secs:
                    _log.error("The master is lost, so %s ends: %s", self.role, error)
                    logging.shutdown()
                    os._exit(3)  # The main thread may be in a collective that cannot end.
            except Exception:
                _log.exception("A heartbeat of %s failed", self.name)
        usage.close()
        with contextlib.suppress(PeerLostError, RemoteError):
            self._master.call(Leave(self.name), self.settings.launch.call_secs)

    def _activity(self) -> JsonObject | None:
        """Describes the activity of this process for the page; see `Doing`."""
        current, status = self.spans.current, self.status()
        if current is None:
            return None
        waits = status.waits_for is not None
        says = f"waits for {status.waits_for}" if waits else describe_activity(status)
        return {
            "kind": str(current.kind),
            "says": says,
            "since_secs": current.start_secs,
            "attributes": plain({name: current.attributes.get(name) for name in _SHOWN}),
        }

    def _doing(self) -> str:
        """Describes the activity of this process, in case it hangs."""
        current = self.spans.current
        if current is None:
            return "between two spans"
        waits = current.kind is SpanKind.WAIT
        of_step = f" (step {current.attributes['step']})" if "step" in current.attributes else ""
        return (f"waiting for {current.reason}" if waits else f"at {current.kind}") + of_step

    def silences(self) -> list[Silence]:
        """Returns other processes that send no heartbeats; none if the master does not answer."""
        try:
            told = self._master.call(AskSilences(SILENT_SECS), SILENT_SECS)
        except (PeerLostError, RemoteError):
            return []
        return [silence for silence in told if silence.name != self.name]

    def close(self) -> None:
        """Stops the heartbeats and closes the spans."""
        self._closed.set()
        self._heart.join(timeout=2 * _LEAST_HEARTBEAT_SECS)
        self.spans.close()
        self._master.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Closes the session; a stop before the role has begun is not an error."""
        self.close()
        return kind is not None and issubclass(kind, RunStoppedError)


class Deadline:
    """Deadline of one wait: call it in each turn of the waiting loop.

    Raises:
      RunStoppedError: the run is being stopped; raised by a call.
      TimeoutError: the deadline has passed; raised by a call. The message names the awaited thing,
        its source, and the time.
    """

    def __init__(self, session: Session, what: str, whom: str, timeout_secs: float):
        self._session, self._what, self._whom = session, what, whom
        self._timeout_secs = timeout_secs
        self._since = self._session.clock.now()

    def renew(self) -> None:
        """Restarts the clock, because the awaited work has made progress."""
        self._since = self._session.clock.now()

    def __call__(self) -> None:
        self._session.agree(f"patience for {self._what}", self._lasts)

    def _lasts(self) -> None:
        self._session.check()
        waited = self._session.clock.now() - self._since
        if waited > self._timeout_secs:
            raise TimeoutError(
                f"{self._session.role} has waited for {self._what} from {self._whom} for"
                f" {waited:.0f} s, which is over launch.wait_secs={self._timeout_secs:g}."
                + "".join(f" {silence}." for silence in self._session.silences())
            )
