"""The trainer's loop: what it waits for between two steps, and what it does not."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest

from rl_sync.cluster.master_calls import Trained
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError
from rl_sync.cluster.team import Team
from rl_sync.learning.batching import Placed
from rl_sync.records.spans import SpanRecorder, sync_kind
from rl_sync.replay.replay_interface import ReplayUnavailableError
from rl_sync.roles.trainer.loop import TrainerLoop
from rl_sync.schedule import resolve
from rl_sync.transfers.checkpoint import CheckpointTrainerEnd
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.roles.trainer.test_steps_in_flight import Computation, _groups

STEPS = 3
WAIT_SECS = 10.0


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
            return SimpleNamespace(step=state.step + 1, params=state.step + 1), metrics

        return compiled


class Loop(TrainerLoop):
    """Without a start and a finish."""

    start, finished = 0, None

    def _start(self):
        self._steps = self.trainer
        return SimpleNamespace(step=self.start, params=self.start)

    def _finish(self, state):
        self.finished = state.step


class Offers:
    """Publishes at once, and remembers how many steps were over by then."""

    def __init__(self, awaits, over):
        self.awaits, self.over, self.published = lambda version: awaits, over, []

    def publish(self, version, params):
        assert params == version
        self.published.append((version, self.over()))

    def serve(self):
        pass

    def close(self):
        pass


def loop_of(tmp_path, offers, calls):
    """A trainer's loop whose calls to the master are noted."""
    session = SimpleNamespace(
        settings=SimpleNamespace(
            workdir=str(tmp_path),
            schedule=resolve("asynchronous"),
            trainer=SimpleNamespace(steps=STEPS),
            evaluation=SimpleNamespace(every_steps=0),
            evaluates_on_explorers=False,
            checkpoint=SimpleNamespace(every_steps=0, best=None),
            algorithm=SimpleNamespace(logprob_gap_alarm=1.0),
            optimizer=SimpleNamespace(updates_per_batch=1),
        ),
        spans=SpanRecorder(None, "trainer"),
        facts={},
        leads=True,
        check=lambda: None,
        hand_out=Team().hand_out,
        tell=lambda call: calls.append(type(call)),
    )
    return Loop(
        session=session,
        trainer=Compiled(),
        batching=SimpleNamespace(placed=lambda groups: Placed(groups, None)),
        parameters=SimpleNamespace(published=lambda params: params),
        sft=None,
        evaluator=None,
        end=lambda schedule: offers,
        reader=lambda schedule, idle: SimpleNamespace(
            next=lambda step: (_groups(step), []), close=lambda reason: None
        ),
        snapshots=tmp_path,
        processes=[0],
    )


@contextlib.contextmanager
def running(tmp_path, awaits):
    """Runs the trainer's loop in a thread; yields its steps and its publishing."""
    calls = []
    offers = Offers(awaits, lambda: calls.count(Trained))
    loop = loop_of(tmp_path, offers, calls)
    steps = loop.trainer
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
    team = Team()
    settings = SimpleNamespace(
        launch=SimpleNamespace(wait_secs=1.0),
        workdir=str(tmp_path),
        weights_directory=lambda workdir: str(workdir.weights),
    )
    site = SimpleNamespace(
        session=SimpleNamespace(settings=settings, team=team, agree=team.agree),
        kind=sync_kind("checkpoint"),
        resources=SimpleNamespace(processes=[0]),
    )
    with contextlib.closing(CheckpointTrainerEnd(site, schedule)) as end:
        assert end.awaits(2) == awaited


def test_a_run_that_is_over_already_publishes_nothing(tmp_path):
    """The explorers of a run that is over have left, and would never come for its weights."""
    offers = Offers(True, list)
    loop = loop_of(tmp_path, offers, [])
    loop.start = STEPS
    loop.run()
    assert (offers.published, loop.finished) == ([], STEPS)


def test_a_trainer_that_cannot_hand_its_weights_on_saves_before_it_fails(tmp_path):
    class Broken(Offers):
        def publish(self, version, params):
            raise WeightsTransferError("explorer 1 is gone")

    loop = loop_of(tmp_path, Broken(False, list), [])
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
    loop = loop_of(tmp_path, Offers(False, list), [])
    steps = loop.trainer

    def next_batch(step):
        if step == 2:
            steps.computations[0].done.set()
            raise failure
        return _groups(step), []

    loop.reader = lambda schedule, idle: SimpleNamespace(next=next_batch)
    with pytest.raises(type(failure), match=str(failure)):
        loop.run()
    assert loop.finished == 1


def test_a_trainer_whose_step_fails_has_nothing_whole_to_save(tmp_path):
    loop = loop_of(tmp_path, Offers(False, list), [])

    def of(batch):
        raise TimeoutError("the devices")

    loop.trainer.of = of
    with pytest.raises(TimeoutError, match="the devices"):
        loop.run()
    assert loop.finished is None


def test_a_run_that_is_stopped_before_its_first_batch_can_be_read_ends_well(tmp_path):
    loop = loop_of(tmp_path, Offers(False, list), [])

    def reader(schedule, idle):
        raise RunStoppedError("interrupted")  # In the wait for the replay server.

    loop.reader = reader
    loop.run()
    assert loop.finished == 0
