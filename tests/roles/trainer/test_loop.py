"""The trainer's loop: what it waits for between two steps, and what it does not."""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

import pytest

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.cluster.process_resources import Resources
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError
from rl_sync.cluster.team import Team
from rl_sync.learning.rows.batching import Placed
from rl_sync.messages.events import Position
from rl_sync.messages.master_calls import Trained
from rl_sync.records.spans import sync_kind
from rl_sync.replay.replay_interface import ReplayUnavailableError
from rl_sync.roles.trainer.loop import TrainerLoop
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.schedule import resolve
from rl_sync.transfers.checkpoint import CheckpointTrainerEnd
from rl_sync.transfers.ends import EndSite
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.cluster.memory_session import MemorySession
from tests.models.meshes import layout
from tests.roles.trainer.test_steps_in_flight import Computation, _groups

STEPS = 3
WAIT_SECS = 10.0


class State(NamedTuple):
    """A trainer state whose parameters are the number of its step."""

    step: int

    @property
    def params(self):
        return self.step


class Compiled:
    """Steps whose metrics are there when they are told to be."""

    def __init__(self):
        self.computations, self.dispatched = [], threading.Semaphore(0)

    def place(self, batch):
        return batch

    def of(self, batch):
        def compiled(state, batch):
            self.computations.append(Computation())
            self.dispatched.release()
            names = ("reward_mean", "staleness_mean", "staleness_max", "logprob_gap")
            metrics = dict.fromkeys(names, self.computations[-1])
            metrics |= dict.fromkeys(("skipped_updates", "skipped_at_end", "unjudged_updates"), 0.0)
            return State(state.step + 1), metrics

        return compiled


class Snapshots:
    """Has a snapshot to begin with, and remembers the step of the state that is saved at the end.

    Args:
      step: step of the snapshot.
    """

    log = None

    def __init__(self, step=0):
        self.step, self.finished = step, None

    def steps(self):
        return [self.step]

    def forget_memory(self):
        pass

    def load_newest(self):
        return State(self.step), Position(self.step, 0, (), 0)

    def save(self, state, schedule, *, waits):
        assert waits
        self.finished = state.step


class Loop(TrainerLoop):
    """Compiles nothing."""

    def _prepare(self):
        pass

    def _finish(self):
        pass

    @property
    def finished(self):
        return self.snapshots.finished


class Offers:
    """Publishes at once, and remembers how many steps were over by then."""

    def __init__(self, session, awaits=False):
        self.session = session
        self.awaits, self.published = lambda version: awaits, []

    def publish(self, version, params):
        assert params == version
        over = sum(isinstance(call, Trained) for call in self.session.calls)
        self.published.append((version, over))

    def serve(self):
        pass

    def close(self):
        pass


class Batching:
    """Places groups as they are."""

    def placed(self, groups):
        return Placed(groups, None)


class Parameters:
    """Publishes all of them."""

    def published(self, params):
        return params


class Reader:
    """Reads two groups for each step.

    Args:
      fails: raises at a step, if it wants to.
    """

    def __init__(self, fails=lambda step: None):
        self._fails = fails

    def next(self, step):
        self._fails(step)
        return _groups(step), []

    def log(self, step, batch):
        pass

    def settle(self):
        pass

    def close(self, reason):
        pass


class NoEvaluator:
    """Evaluates nothing."""

    def hand_in(self, params, moment, step):
        pass


def loop_of(tmp_path, offers=Offers, **options):
    """Makes a trainer's loop in a session that keeps its calls."""
    session = MemorySession(
        workdir=tmp_path,
        sync__mode="asynchronous",
        sync__verify=False,
        trainer__steps=STEPS,
        evaluation__every_steps=0,
        checkpoint__every_steps=0,
    )
    end = offers(session, **options)
    trainer = Compiled()
    return Loop(
        session=session,
        trainer=trainer,
        batching=Batching(),
        parameters=Parameters(),
        sft=None,
        evaluator=NoEvaluator(),
        end=lambda schedule: end,
        source=lambda point, schedule, idle: Reader(),
        snapshots=Snapshots(),
        steps=trainer,
        place=lambda lay_out: trainer.place(lay_out()),
        consumed=lambda counted: ConsumptionRecord(tmp_path, counted),
        digests=lambda since, exact: PublishedDigests(None, since=since, exact=exact),
    )


@contextlib.contextmanager
def running(tmp_path, awaits):
    """Runs the trainer's loop in a thread; yields its steps and its publishing."""
    loop = loop_of(tmp_path, awaits=awaits)
    steps, offers = loop.trainer, loop.end(None)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    yield steps, offers
    while thread.is_alive():
        for computation in steps.computations:
            computation.done.set()
        thread.join(0.05)
    assert loop.finished == STEPS


def test_a_step_is_dispatched_before_the_metrics_of_the_last_one_are_there(tmp_path):
    """Though each step's weights are published."""
    with running(tmp_path, awaits=False) as (steps, offers):
        assert steps.dispatched.acquire(timeout=WAIT_SECS)
        assert steps.dispatched.acquire(timeout=WAIT_SECS), "it waits for the metrics of step 1"
        assert not steps.dispatched.acquire(timeout=0.2), "step 3 does not wait for those of step 1"
        assert offers.published == [(0, 0), (1, 0)]
        steps.computations[0].done.set()
        assert steps.dispatched.acquire(timeout=WAIT_SECS), "it waits for the metrics of step 2"
    assert [version for version, _ in offers.published] == [0, 1, 2]


def test_a_version_that_has_to_be_awaited_is_published_when_its_step_is_over(tmp_path):
    with running(tmp_path, awaits=True) as (steps, offers):
        assert steps.dispatched.acquire(timeout=WAIT_SECS)
        assert not steps.dispatched.acquire(timeout=0.2)
        assert offers.published == [(0, 0)]
        steps.computations[0].done.set()
        assert steps.dispatched.acquire(timeout=WAIT_SECS)
        assert offers.published == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("schedule", "awaited"),
    [
        (resolve("synchronous"), True),
        (resolve("one_step_off_policy"), False),
        (resolve("custom", interval=2, offset=3), False),
        (resolve("asynchronous"), False),
        (resolve("multi_explorer"), False),
    ],
)
def test_checkpoints_are_awaited_where_the_next_batch_is_made_with_them(
    schedule, awaited, tmp_path
):
    session = MemorySession(workdir=tmp_path, sync__mode="asynchronous")
    resources = Resources(layout(), Team(), [0])
    site = EndSite(session, sync_kind("checkpoint"), resources, "", lambda layout: {})
    with contextlib.closing(CheckpointTrainerEnd(site, schedule)) as end:
        assert end.awaits(2) == awaited


def test_a_run_that_is_over_already_publishes_nothing(tmp_path):
    """The explorers of a run that is over have left, and would never come for its weights."""
    loop = loop_of(tmp_path, awaits=True)
    loop.snapshots.step = STEPS
    loop.run()
    assert (loop.end(None).published, loop.finished) == ([], STEPS)


def test_a_trainer_that_cannot_hand_its_weights_on_saves_before_it_fails(tmp_path):
    class Broken(Offers):
        def publish(self, version, params):
            raise WeightsTransferError("explorer 1 is gone")

    loop = loop_of(tmp_path, Broken)
    with pytest.raises(WeightsTransferError, match="explorer 1 is gone"):
        loop.run()
    assert loop.finished == 0


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutError("trainer has waited for the batch of trainer step 2"),
        ReplayUnavailableError("the replay server is gone"),
        RemoteError("ValueError: This process does not answer Claim."),
    ],
)
def test_a_trainer_whose_own_wait_fails_saves_what_it_has_before_it_fails(tmp_path, failure):
    loop = loop_of(tmp_path)
    steps = loop.trainer

    def fails(step):
        if step == 2:
            steps.computations[0].done.set()
            raise failure

    loop.source = lambda point, schedule, idle: Reader(fails)
    with pytest.raises(type(failure), match=str(failure)):
        loop.run()
    assert loop.finished == 1


def test_a_trainer_whose_step_fails_has_nothing_whole_to_save(tmp_path):
    loop = loop_of(tmp_path)

    def of(batch):
        raise TimeoutError("the devices")

    loop.trainer.of = of
    with pytest.raises(TimeoutError, match="the devices"):
        loop.run()
    assert loop.finished is None


def test_a_run_that_is_stopped_before_its_first_batch_can_be_read_ends_well(tmp_path):
    loop = loop_of(tmp_path)

    def source(point, schedule, idle):
        raise RunStoppedError("interrupted")  # In the wait for the replay server.

    loop.source = source
    loop.run()
    assert loop.finished == 0
