"""The trainer of a simulated run: it takes batches, trains, publishes, evaluates and saves.

It takes its steps in the same order as `rl_sync.roles.trainer.loop`. The next batch is read while a
step is computed.
"""

from __future__ import annotations

from rl_sync.messages.events import (
    TOO_STALE,
    BatchRequested,
    BatchTrained,
    GrantBatch,
    GroupsRefused,
)
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import TRAINER
from rl_sync.simulation.event_queue import Action
from rl_sync.simulation.speed.simulated_site import BufferedGroup, SimulatedSite
from rl_sync.simulation.speed.simulated_weights import SimulatedWeights


class TimedTrainer:
    """Drives the trainer through all steps.

    Args:
      site: the run.
      weights: the way of its weights.

    Attributes:
      trained: number of finished steps.
    """

    def __init__(self, site: SimulatedSite, weights: SimulatedWeights) -> None:
        self._site, self._weights = site, weights
        self.trained = 0
        self._begun = 0
        self._batch: list[BufferedGroup] | None = None
        self._refused: list[int] = []
        self._whole_secs = 0.0
        self._free_secs: float | None = None
        site.watch(self._look)

    @property
    def is_over(self) -> bool:
        """True once all steps are finished."""
        return self.trained >= self._site.plan.master.steps

    def begin(self) -> None:
        """Publishes the first version, and waits for the first batch."""
        self._publish(0, self._be_free)

    def _be_free(self) -> None:
        self._free_secs = self._site.now
        self._look()

    def _look(self) -> None:
        """Reads the next batch if it is there, and begins its step if the trainer is free."""
        self._read()
        if self._free_secs is None or self.is_over:
            return
        site, free, self._free_secs = self._site, self._free_secs, None
        if self._batch is None:

            def served() -> None:
                self._free_secs = free

            self._weights.serve(served)
            return
        self._begun += 1
        step, batch, self._batch = self._begun, self._batch, None
        site.record(TRAINER, SpanKind.WAIT, free, reason="experiences", step=step)
        start = self._whole_secs + site.draw(site.work.layout, "layout", step)
        site.queue.at(start, lambda: self._train(step, batch))

    def _read(self) -> None:
        """Takes the next batch from the buffer once it is whole, as `BatchReader` does."""
        site, plan, step = self._site, self._site.plan, self._begun + 1
        if self._batch is not None or step > plan.master.steps:
            return
        size = plan.master.groups_per_step
        if plan.schedule.pull == "exact":
            wanted = range((step - 1) * size, step * size)
            found = [group for group in site.buffer if group.ordinal in wanted]
        else:
            self._refuse(step)
            found = self._granted(step) if plan.master.carries_over else site.buffer[:size]
        if len(found) == size:
            taken = {group.lease_id for group in found}
            site.buffer = [group for group in site.buffer if group.lease_id not in taken]
            self._batch, self._whole_secs = found, site.now

    def _granted(self, step: int) -> list[BufferedGroup]:
        """Returns the batch that the master chooses where groups have deadlines, if it is there."""
        site = self._site
        if len(site.buffer) < site.plan.master.groups_per_step:
            return []
        grant = site.ask(BatchRequested(step, tuple(group.lease_id for group in site.buffer)))
        assert isinstance(grant, GrantBatch)
        by_lease = {group.lease_id: group for group in site.buffer}
        return [by_lease[lease_id] for lease_id in grant.lease_ids]

    def _refuse(self, step: int) -> None:
        """Gives back groups that are too old for a step."""
        site, schedule = self._site, self._site.plan.schedule
        late = [group for group in site.buffer if not schedule.accepts(step, group.version)]
        if late:
            leases = [group.lease_id for group in late]
            self._refused += leases
            site.buffer = [group for group in site.buffer if group.lease_id not in leases]
            site.tell(GroupsRefused(tuple(leases), TOO_STALE))

    def _train(self, step: int, batch: list[BufferedGroup]) -> None:
        site, began = self._site, self._site.now
        refused, self._refused = self._refused, []
        order = site.random("selection", step).sample(range(len(batch)), len(batch))
        chosen = {order[i] for i in range(min(len(batch), site.plan.groups_trained))}
        trained = [group for i, group in enumerate(batch) if i in chosen]
        left_out = [group.lease_id for i, group in enumerate(batch) if i not in chosen]
        share = len(batch) / site.work.groups_per_step
        secs = share * site.draw(site.work.train, "train", step)

        def done() -> None:
            leases = [group.lease_id for group in trained]
            site.record(
                TRAINER,
                SpanKind.TRAIN,
                began,
                step=step,
                leases=leases,
                dropped=[*left_out, *refused],
                versions=sorted({group.version for group in trained}),
                tokens=sum(group.tokens for group in trained),
            )
            self.trained = step
            site.tell(BatchTrained(step, tuple(leases), tuple(left_out)))
            self._publish(step, lambda: self._look_after(step))

        site.machine.work(True, secs, done)

    def _publish(self, step: int, then: Action) -> None:
        """Publishes the weights after a step if explorers will use them."""
        schedule, steps = self._site.plan.schedule, self._site.plan.master.steps
        first_user = schedule.first_user(step) if schedule.pull == "exact" else step + 1
        if schedule.publishes_after(step) and first_user <= steps:
            self._weights.publish(step, then)
        else:
            self._weights.serve(then)

    def _look_after(self, step: int) -> None:
        """Saves and evaluates if it is due; the end of the run does it for the last step."""
        plan, work = self._site.plan, self._site.work
        saves = _is_due(step, plan.snapshot_every_steps) and step < plan.master.steps
        evaluates = _is_due(step, plan.evaluate_every_steps) and step < plan.master.steps

        def evaluate() -> None:
            self._do(SpanKind.EVALUATION, evaluates, step, work.evaluate.mean, self._be_free)

        self._do(SpanKind.SNAPSHOT, saves, step, work.snapshot.mean, evaluate)

    def _do(self, kind: SpanKind, is_due: bool, step: int, secs: float, then: Action) -> None:
        if not is_due or not secs:
            then()
            return
        began = self._site.now

        def done() -> None:
            self._site.record(TRAINER, kind, began, step=step)
            then()

        self._site.machine.work(True, secs, done)


def _is_due(step: int, every_steps: int) -> bool:
    return every_steps > 0 and step % every_steps == 0
