"""The master's program: the master actor behind remote calls, with its ledger and its judges."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from rl_sync.actors import master
from rl_sync.actors.events import (
    BatchTrained,
    Event,
    ExplorerDied,
    ExplorerSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsRefused,
    HoldBack,
    LeaseRequested,
    Position,
    Record,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)
from rl_sync.observe import accuracy
from rl_sync.observe.display import RoleStatus, RunStatus
from rl_sync.observe.jsonlines import RecordsError
from rl_sync.observe.metrics_writer import MetricsWriter
from rl_sync.processes.attendance import Attendance
from rl_sync.processes.rpc import RpcServer
from rl_sync.processes.secret import secret_of
from rl_sync.rewards.pool import RewardPool
from rl_sync.rewards.router import RewardRequest
from rl_sync.runtime import wiring
from rl_sync.settings.run import RunSettings
from rl_sync.storage.ledger import Ledger, balance
from rl_sync.tasks.order import prompt_at
from rl_sync.weights.rendezvous import MeetingPoint, Request

_TICK_SECS = 0.5


class MasterProgram:
    """Answers the other roles' calls; every public method of `methods` is one.

    Args:
      settings: the run.
    """

    def __init__(self, settings: RunSettings):
        self._settings = settings
        self._task = wiring.load_task(settings)
        self._changed = threading.Condition()
        self._state = master.MasterState(wiring.master_settings(settings))
        self._ledger = Ledger(settings.workdir)
        self._metrics = MetricsWriter(settings.workdir)
        self._meeting = MeetingPoint()
        self._judges = RewardPool(settings.master.reward_workers)
        self._roles: dict[str, RoleStatus] = {}
        self._phase, self._message = "start", ""
        self._result: dict[str, Any] = {}
        self._transfer: str | None = None
        self._holders: dict[int, str] = {}
        self._first_lease = 0
        self._started = time.monotonic()
        self._attendance = Attendance(self._started)
        self.closed = threading.Event()
        threading.Thread(target=self._tick, name="ticks", daemon=True).start()

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """What the other roles may call."""
        return {
            "resumed": self._resumed,
            "begin": self._begin,
            "lease": self._lease,
            "judge": self._judge,
            "judged": self._judged,
            "buffered": self._buffered,
            "claim": self._claim,
            "refused": self._refused,
            "trained": self._trained,
            "published": self._published,
            "newest": self._newest,
            "position": self._position,
            "heartbeat": self._heartbeat,
            "leave": self._attendance.left,
            "silences": self._silences,
            "metrics": self._write_metrics,
            "phase": self._set_phase,
            "result": self._set_result,
            "evaluated": self._evaluated,
            "status": self._status,
            "summary": self._summary,
            "explorer_died": self._explorer_died,
            "stop": self._stop,
            "fail": self._fail,
            "close": self._close,
            "decide_transfer": self._decide_transfer,
            "decided_transfer": lambda: self._transfer,
            "hold": self._hold,
            "holders": lambda: [address for _, address in sorted(self._holders.items())],
            "weights_ask": self._meeting.ask,
            "weights_granted": self._meeting.granted,
            "weights_withdraw": self._meeting.withdraw,
            "weights_waiting": self._meeting.waiting,
            "weights_grant": self._grant_weights,
        }

    def _apply(self, event: Event) -> tuple[Any, ...]:
        """Takes an event under the lock, keeps the ledger, and returns the actor's answers."""
        with self._changed:
            self._state, commands = master.transition(self._state, event)
            self._keep(commands)
            # Requests and signs of life make nothing possible that was not; were they announced,
            # explorers that wait for the same thing would keep waking each other up.
            if not isinstance(event, LeaseRequested | ExplorerSeen) and (
                commands or not isinstance(event, Ticked)
            ):
                self._changed.notify_all()
            return tuple(command for command in commands if not isinstance(command, Record))

    def _keep(self, commands: tuple[Any, ...]) -> None:
        """Keeps the ledger."""
        for command in commands:
            if isinstance(command, Record):
                self._write(functools.partial(self._ledger.write, command))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes to the ledger; a run whose ledger has holes is stopped."""
        try:
            write()
        except RecordsError as error:
            self._fail(str(error))

    def _resumed(self, step: int, warm_up: int | None) -> None:
        """The run goes on from a snapshot: what was recorded of later steps does not count."""
        try:
            self._first_lease = self._ledger.resume(step)
        except RecordsError as error:
            self._fail(str(error))
        self._metrics.resume(step, warm_up)

    def _begin(self, step: int, next_ordinal: int, again: list[list[int]], next_lease: int) -> None:
        places = tuple((ordinal, replacement) for ordinal, replacement in again)
        # Leases that were given after the snapshot was taken have had their ids.
        next_lease = max(next_lease, self._first_lease)
        self._apply(Started(Position(step, next_ordinal, places, next_lease)))

    def _lease(self, explorer: int, poll_secs: float, unfinished: int = 0) -> dict[str, Any]:
        deadline = time.monotonic() + poll_secs
        with self._changed:
            while True:
                request = LeaseRequested(explorer, time.monotonic(), unfinished)
                (answer,) = self._apply(request)
                left = deadline - time.monotonic()
                if not isinstance(answer, HoldBack) or left <= 0:
                    return self._encode(answer)
                self._changed.wait(left)

    def _encode(self, answer: GrantLeases | HoldBack | Finish) -> dict[str, Any]:
        if isinstance(answer, HoldBack):
            return {"kind": "hold", "reason": answer.reason}
        if isinstance(answer, Finish):
            return {"kind": "finish", "reason": answer.reason}
        leases, count, seed = [], len(self._task.train), self._settings.seed
        for lease in answer.leases:
            prompt = self._task.train[prompt_at(lease.ordinal, count, seed, lease.replacement)]
            # Under exact pulls a batch is that of its step, however often it was begun.
            attempt = 0 if answer.exactly else lease.attempt
            leases.append([lease.lease_id, lease.ordinal, attempt, list(prompt)])
        return {
            "kind": "grant",
            "step": answer.step,
            "version": answer.version,
            "exactly": answer.exactly,
            "leases": leases,
        }

    def _judge(self, items: list[list[str]]) -> list[float]:
        """Rewards of [prompt, completion, answer] triples, in their order."""
        return self._judges.judge([RewardRequest(self._task.reward, *item) for item in items])

    def _judged(self, judged: list[tuple[int, list[float]]]) -> list[int]:
        """An explorer has the rewards of groups; returns the lease ids of those it is to insert."""
        groups = tuple((lease_id, tuple(rewards)) for lease_id, rewards in judged)
        (admit,) = self._apply(GroupsJudged(groups))
        return list(admit.lease_ids)

    def _buffered(self, lease_ids: list[int]) -> None:
        self._apply(GroupsBuffered(tuple(lease_ids)))

    def _claim(self, lease_ids: list[int]) -> list[int]:
        """The trainer has taken these out of the buffer; returns those whose lease was over."""
        with self._changed:
            self._apply(GroupsBuffered(tuple(lease_ids)))
            return [lease_id for lease_id in lease_ids if lease_id not in self._state.live]

    def _refused(self, lease_ids: list[int], reason: str) -> None:
        self._apply(GroupsRefused(tuple(lease_ids), reason))

    def _trained(
        self, step: int, lease_ids: list[int], left_out: list[int], values: dict[str, Any]
    ) -> None:
        self._apply(BatchTrained(step, tuple(lease_ids), tuple(left_out)))
        self._metrics.write("rl", step, values)

    def _published(self, version: int) -> None:
        self._apply(VersionPublished(version))

    def _decide_transfer(self, transfer: str) -> None:
        self._transfer = transfer

    def _hold(self, process: int, address: str) -> None:
        """A process of the trainer serves weights at an address."""
        self._holders[process] = address

    def _grant_weights(self, request: list[Any], version: int, digest: str) -> bool:
        return self._meeting.grant(Request(*request), version, digest)

    def _newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """The newest version; waits for one of `at_least`, unless the run is being stopped."""

        def newest() -> int:
            return -1 if self._state.newest is None else self._state.newest

        with self._changed:
            self._changed.wait_for(
                lambda: newest() >= at_least or self._state.stopping is not None, timeout_secs
            )
            return newest()

    def _position(self) -> dict[str, Any]:
        with self._changed:
            return master.position(self._state)._asdict()

    def _heartbeat(
        self, role: str, status: dict[str, Any], name: str = "", process: int = 0, doing: str = ""
    ) -> dict[str, Any]:
        """A sign of life of one process of a role; the first one speaks for the role."""
        self._attendance.heard(name or role, process, doing, time.monotonic())
        if name not in ("", role):
            return {"stop": self._state.stopping}
        self._roles[role] = RoleStatus.from_dict(status)
        if role.startswith("explorer"):
            self._apply(ExplorerSeen(int(role.removeprefix("explorer")), time.monotonic()))
        return {"stop": self._state.stopping}

    def _silences(self, at_least_secs: float) -> list[list[Any]]:
        return [list(silence) for silence in self._attendance.silences(at_least_secs)]

    def _write_metrics(self, phase: str, step: int, values: dict[str, Any]) -> None:
        self._metrics.write(phase, step, values)

    def _set_phase(self, phase: str, message: str = "") -> None:
        self._phase, self._message = phase, message or self._message

    def _set_result(self, values: dict[str, Any]) -> None:
        with self._changed:
            self._result = {**self._result, **values}

    def _evaluated(self, moment: str, values: dict[str, Any]) -> None:
        self._result.setdefault("evaluations", {})[moment] = values
        parts = accuracy.describe_parts(values)
        self._message = f"held-out accuracy {moment}: {values['accuracy']:.1%}{parts}"

    def _status(self) -> dict[str, Any]:
        settings = self._settings
        capacity = settings.schedule.batches_ahead * settings.groups_generated
        with self._changed:
            step, steps, loss = self._state.trained_steps, settings.trainer.steps, None
            if self._phase == "warm-up":
                step, steps = 0, settings.warm_up.steps
                if (trainer := self._roles.get("trainer")) is not None:
                    step, loss = trainer.step or 0, trainer.loss
            return RunStatus(
                phase=self._phase,
                step=step,
                steps=steps,
                roles=tuple(self._roles[role] for role in settings.roles if role in self._roles),
                buffer_size=self._state.buffered,
                buffer_capacity=capacity,
                elapsed_secs=time.monotonic() - self._started,
                message=self._message,
                loss=loss,
            ).to_dict()

    def _summary(self) -> dict[str, Any]:
        with self._changed:
            return {"result": self._result, "balance": balance(self._state)}

    def _explorer_died(self, explorer: int) -> None:
        self._attendance.lost(f"explorer{explorer}")
        self._apply(ExplorerDied(explorer))

    def _stop(self, reason: str) -> None:
        self._apply(StopRequested(reason))

    def _fail(self, reason: str) -> None:
        """Stops the run, which then has failed for this reason; the first one counts."""
        with self._changed:
            if "failed" in self._result:
                return
            self._result["failed"] = self._message = reason
            self._apply(StopRequested(reason))

    def _close(self) -> dict[str, Any]:
        """Closes the ledger's account, once the explorers have left; the process ends after it."""
        with self._changed:
            if not self.closed.is_set():
                self._state, commands = master.end(self._state)
                self._keep(commands)
                self._write(lambda: self._ledger.write_balance(self._state))
                self._ledger.close()
                self._metrics.close()
                self._judges.close()
                self.closed.set()
            return self._summary()

    def _tick(self) -> None:
        while not self.closed.wait(_TICK_SECS):
            self._attendance.ticked(time.monotonic(), _TICK_SECS)
            self._apply(Ticked(time.monotonic()))


def run_master(settings: RunSettings, address: str) -> None:
    """Serves as the master, at `host:port`, until it is told to close, or to terminate."""
    program = MasterProgram(settings)
    host, _, port = address.rpartition(":")
    server = RpcServer(program.methods, int(port), host, secret=secret_of(settings.workdir))
    signal.signal(signal.SIGTERM, lambda *_: program.closed.set())
    program.closed.wait()
    server.close()
