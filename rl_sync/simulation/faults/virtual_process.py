"""A process of the simulation that runs the code of a real role, in threads of virtual time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import greenlet

from rl_sync.cluster.pending import Await
from rl_sync.cluster.rpc import PeerLostError
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.configs import base
from rl_sync.messages.call import Call
from rl_sync.messages.master_calls import AskLease
from rl_sync.messages.weight_calls import AskNewest, AskWaiting, AskWeights, AwaitGrant
from rl_sync.records.spans import Span
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.faults.drawn_run import MASTER, DrawnRun
from rl_sync.simulation.faults.processes import SimulatedProcess
from rl_sync.simulation.simulated_session import SimulatedSession, VirtualSpans
from rl_sync.simulation.virtual_clock import VirtualClock
from rl_sync.weights.ends_interface import WeightsTransferError

WAIT_SECS = 300.0
_ENDING = (TimeoutError, PeerLostError, ReplayError, RunEndedError, WeightsTransferError)
"""Errors with which a real process ends, too; all others are mistakes."""

T = TypeVar("T")


@functools.cache
def _base() -> RunSettings:
    return read_settings({**base.get_config().to_dict(), "workdir": "simulated"})


@functools.lru_cache(maxsize=8)
def settings_of(run: DrawnRun) -> RunSettings:
    """Returns the settings of a drawn run, as far as roles read them."""
    whole, schedule = _base(), run.schedule
    return dataclasses.replace(
        whole,
        seed=run.seed,
        sync=dataclasses.replace(
            whole.sync,
            mode="custom",
            interval=schedule.interval,
            offset=schedule.offset,
            max_staleness=None if run.is_exact else schedule.max_staleness,
            pull=schedule.pull,
            transfer=run.transfer,
            verify=False,
        ),
        trainer=dataclasses.replace(
            whole.trainer, steps=run.steps, groups_per_step=run.groups_per_step
        ),
        algorithm=dataclasses.replace(
            whole.algorithm,
            over_sampling=run.groups_generated / run.groups_per_step,
            max_attempts=run.screening.max_attempts,
            filter_zero_variance=run.screens,
        ),
        optimizer=dataclasses.replace(whole.optimizer, updates_per_batch=1),
        explorer=dataclasses.replace(
            whole.explorer, count=run.explorers, groups_per_lease=run.groups
        ),
        rollout=dataclasses.replace(
            whole.rollout,
            streaming=run.style == "stream",
            budget_tokens=int(run.style == "carry"),
            swap="in_flight" if run.swaps else "between",
            progress_tokens=int(run.tells),
        ),
        replay=dataclasses.replace(whole.replay, times_sampled=run.times_sampled),
        checkpoint=dataclasses.replace(
            whole.checkpoint,
            every_steps=run.save_every_steps,
            memory_every_steps=run.memory_every_steps,
            keep=run.keep,
        ),
        evaluation=dataclasses.replace(whole.evaluation, every_steps=run.evaluate_every_steps),
        launch=dataclasses.replace(whole.launch, wait_secs=WAIT_SECS),
    )


class VirtualProcess(SimulatedProcess):
    """Runs the code of a role.

    Attributes:
      clock: time and threads of this life.
    """

    clock: VirtualClock

    def begin(self) -> None:
        """Starts the role's main thread."""
        self.clock = VirtualClock(lambda: self.world.queue.now_secs, self.after, self._failed)
        self.clock.thread(self.run, "main")

    def run(self) -> None:
        """Runs the role to its end, in its main thread."""
        raise NotImplementedError

    def die(self) -> None:
        """See `SimulatedProcess`."""
        super().die()
        if self.life:
            self.clock.die()

    def blocking(
        self, start: Callable[[Callable[..., None]], None], secs: float | None = None
    ) -> Any:
        """Lets a thread wait for what begins now.

        Args:
          start: begins it, given a function to call with the result.
          secs: time after which it is given up.

        Raises:
          TimeoutError: it takes longer.
        """
        self.clock.require_life()
        future = self.clock.future()
        start(lambda *results: future.set_result(results[0] if results else None))
        return future.result(secs)

    def ask(
        self, target: str, message: Any, poll_secs: float = 0.0, secs: float | None = None
    ) -> Any:
        """Calls another process from a thread, and waits for the answer.

        Args:
          poll_secs: time that the answer may take on purpose.
          secs: time after which the call is given up; None for that of all calls.

        Raises:
          TimeoutError: it was given up.
        """
        channel = f"thread {id(greenlet.getcurrent())}"
        try:
            return self.blocking(
                lambda then: self.call(target, message, then, channel, poll_secs), secs
            )
        except TimeoutError:
            self.forget_call(channel)
            raise

    def _failed(self, error: BaseException) -> None:
        """Ends the process with the error of a thread, if a real one would end with it."""
        if not isinstance(error, _ENDING):
            raise error
        self.world.kill(self, f"{type(error).__name__}: {error}")


class VirtualSession(SimulatedSession):
    """The session of a role's only process, which calls the simulated master.

    Args:
      process: the process.
    """

    def __init__(self, process: VirtualProcess) -> None:
        def add(span: Span) -> None:
            process.world.span(span.role, span.kind, span.start_secs, **span.attributes)

        spans = VirtualSpans(process.name, lambda: process.world.queue.now_secs, add)
        super().__init__(settings_of(process.world.run), spans, process.clock)
        self._process = process

    def call_alone(self, call: Call[T]) -> T:
        """See `Session`."""
        sent: Any = call
        poll_secs = 0.0
        match call:  # Keys and numbers of requests are drawn anew in each run.
            case Await():
                sent = dataclasses.replace(call, key="")
            case AskLease():
                sent = dataclasses.replace(call, request=None)
                poll_secs = call.poll_secs
            case AskWeights():
                sent = dataclasses.replace(call, number=None)
            case AskNewest() | AwaitGrant() | AskWaiting():
                poll_secs = call.timeout_secs
        if not isinstance(call, AwaitGrant | AskWaiting):  # They come again and again.
            self._process.command(sent)
        answer: T = self._process.ask(MASTER, sent, poll_secs)
        return answer
