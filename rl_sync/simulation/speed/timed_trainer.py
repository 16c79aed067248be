"""The trainer of a simulated run: the real loop and reader, over an actor that takes its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.records.spans import SpanKind
from rl_sync.replay.replay_interface import ReplayTimeoutError
from rl_sync.role_names import TRAINER
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.roles.trainer.commands import StartingPoint
from rl_sync.roles.trainer.logged_batches import LoggedBatches
from rl_sync.roles.trainer.loop import TrainerLoop
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.speed.simulated_site import ComputedVersion, SimulatedSite, TimedSession
from rl_sync.simulation.speed.timed_weights import end_of
from rl_sync.simulation.stand_ins import (
    LaterNumber,
    SampledItem,
    StandInTrainer,
    step_metrics,
)
from rl_sync.types import Group


def trainer_of(site: SimulatedSite) -> Callable[[], None]:
    """Returns the trainer as a function that runs it to its end."""

    def run() -> None:
        session = TimedSession(site, TRAINER)
        actor: Any = _TrainingActor(site, session)

        def source(
            point: StartingPoint, schedule: SyncSchedule, idle: Callable[[], None]
        ) -> LoggedBatches:
            def reader(on_taken: Callable[[int, list[Group]], None]) -> BatchReader:
                replay: Any = _Sampler(site)
                return BatchReader(session, replay, "groups", schedule, idle, on_taken=on_taken)

            return LoggedBatches(session, None, reader, point)

        TrainerLoop(
            session=session,
            trainer=actor,
            batching=actor,
            parameters=actor,
            sft=actor,
            evaluator=actor,
            end=lambda schedule: end_of(site, session),
            source=source,
            snapshots=actor,
            steps=actor,
            place=lambda lay_out: lay_out(),
            consumed=lambda counted: ConsumptionRecord(None, counted),
            digests=lambda since, exact: PublishedDigests(None, since=since, exact=exact),
        ).run()

    return run


class _State(NamedTuple):
    """The trainer's state."""

    step: int
    params: ComputedVersion


class _TrainingActor(StandInTrainer):
    """The trainer's actor, and all else that computes: it takes the time of the workload."""

    log = None

    def __init__(self, site: SimulatedSite, session: TimedSession) -> None:
        self._site, self._session = site, session
        self._device = site.clock.pool(1, "device")

    # Parameters, and the start.

    def initial(self) -> ComputedVersion:
        computed = self._site.clock.future()
        computed.set_result(None)
        return ComputedVersion(0, computed)

    def digest(self, params: ComputedVersion) -> str:
        params.computed.result()
        return str(params.number)

    def start(self, params: ComputedVersion) -> _State:
        return _State(0, params)

    def begin(self, state: _State) -> _State:
        return state

    # Between steps.

    def hand_in(self, params: ComputedVersion, moment: str, step: int) -> None:
        """Evaluates; that of the first policy is before the run."""
        del params, moment
        self._spend(SpanKind.EVALUATION, step, self._site.work.evaluate.mean if step else 0.0)

    def steps(self, in_memory: bool = False) -> list[int]:
        """Finds no snapshot."""
        del in_memory
        return []

    def save(self, state: _State, schedule: SyncSchedule, *, waits: bool) -> None:
        """Saves a snapshot."""
        del schedule, waits
        self._spend(SpanKind.SNAPSHOT, state.step, self._site.work.snapshot.mean)

    def save_in_memory(self, state: _State, schedule: SyncSchedule) -> None:
        """Takes no time."""

    def forget_memory(self) -> None:
        """Has nothing in memory."""

    def _spend(self, kind: SpanKind, step: int, secs: float) -> None:
        if secs:
            with self._session.spans.span(kind, step=step):
                self._site.compute(True, secs)

    # Steps.

    def largest(self) -> tuple[Group, ...]:
        return ()

    def placed(self, groups: Sequence[Group]) -> tuple[Sequence[Group], None]:
        """Lays a batch out."""
        site = self._site
        secs = site.draw(site.work.layout, "layout", site.master.trained_steps)
        if secs:
            site.clock.sleep(secs)
        return groups, None

    def _stepped(
        self, state: _State, batch: Sequence[Group]
    ) -> tuple[_State, Mapping[str, LaterNumber]]:
        """Dispatches a step, which begins once the one before it is computed."""
        site, step = self._site, state.step + 1
        share = site.plan.master.groups_per_step / site.work.groups_per_step
        secs = share * site.draw(site.work.train, "train", step)
        computed = self._device.submit(site.compute, True, secs)
        versions = [one.oldest_version for one in batch]
        metrics = step_metrics(step, versions, computed.result)
        return _State(step, ComputedVersion(step, computed)), metrics


class _Sampler:
    """The trainer's client of the replay buffer; see `ReplayClient`."""

    may_restart = False

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site

    def sample(self, table: str, count: int, *, timeout_secs: float) -> list[SampledItem]:
        """Waits for an item; if anything else changes first, the reader looks at its time."""
        del table
        site = self._site
        if not site.buffer and timeout_secs:
            began = site.queue.now_secs
            site.wait_for_change()
            turns = -(-(site.queue.now_secs - began) // timeout_secs)
            left = began + max(1, turns) * timeout_secs - site.queue.now_secs
            site.wait_for(lambda: bool(site.buffer), left)
        if not site.buffer:
            raise ReplayTimeoutError("no group came")
        return [SampledItem(columns) for columns in site.take(count)]
