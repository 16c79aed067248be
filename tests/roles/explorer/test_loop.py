"""Work of the explorer's loop between chunks of a rollout."""

import time

import pytest

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.messages.events import Finish, GrantEvaluation, HoldBack, LeaseGrant
from rl_sync.messages.master_calls import AskLease, AwaitEvaluations, HandInEvaluation, Report
from rl_sync.messages.run_result import RunResult
from rl_sync.ports.clock_port import SystemClock
from rl_sync.records.spans import SpanKind
from rl_sync.roles.evaluation.pinned_evaluations import MadeEvaluation
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.rollout.stats import Stats
from rl_sync.types import Lease, Prompt
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError
from tests.cluster.memory_session import MemorySession
from tests.settings.changed import settings_with


class Weights:
    """A puller of versions that are only numbers."""

    def __init__(self):
        self.version, self.looks, self.withdrawn = 3, 0, False

    def newest(self, at_least=-1, timeout_secs=0.0):
        self.looks += 1
        if timeout_secs:
            self.version = max(self.version, at_least)
        return self.version

    def pull(self, *, at_least=None, exactly=None, timeout_secs):
        if self.withdrawn:
            raise WeightsTimeoutError("gone")
        version = self.version if exactly is None else exactly
        assert version >= (at_least or 0)
        return version, f"params {version}"


@pytest.fixture
def weights():
    return Weights()


class Clock(SystemClock):
    """The time of the loop, which goes on when a test says so, or with each look at it."""

    def __init__(self):
        self.secs, self.ticks = 100.0, False

    def now(self):
        self.secs += self.ticks
        return self.secs


class Delivery:
    """Keeps the groups that it is to deliver."""

    def __init__(self):
        self.delivered = []

    def deliver(self, groups):
        self.delivered.append(groups)

    def check(self):
        pass

    def close(self):
        pass


class Evaluations:
    """Evaluations of so many chunks.

    Attributes:
      steps: whether rollouts stood still, at each chunk.
    """

    chunks = 1

    def __init__(self):
        self.begun, self.steps, self.lost_secs = [], [], 0.0

    @property
    def left(self):
        return len(self.begun)

    def begin(self, version, params):
        self.begun.append((version, params))

    def step(self, *, delays):
        if not self.begun:
            return None
        self.steps.append(delays)
        self.lost_secs += 0.5 * delays
        if len(self.steps) < self.chunks:
            return None
        version, params = self.begun.pop(0)
        return MadeEvaluation(version, [params], 0.0, 0.5, 0.25)

    def close(self):
        self.begun.clear()


class Engine:
    """An engine that has done nothing yet."""

    def __init__(self, version=-1):
        self.stats, self.version = Stats(), version


class Explorer:
    """An explorer that generates whole leases.

    Args:
      rollout: what it does instead.
    """

    streams = in_parts = False
    groups = 1

    def __init__(self, rollout=None, version=-1):
        self.engine, self.rollout = Engine(version), rollout

    def compile(self, params):
        pass


@pytest.fixture
def loop(weights):
    loop = ExplorerLoop(
        MemorySession(role="explorer1"),
        number=1,
        explorer=Explorer(),
        blank=lambda: None,
        puller=weights,
        began_secs=lambda: 0.0,
        at_hand=lambda: None,
        sync_kind=SpanKind.SYNC_CHECKPOINT,
        delivery=Delivery(),
        evaluations=Evaluations(),
    )
    loop.clock = loop.session.clock = Clock()
    return loop


@pytest.fixture
def swapping(loop):
    """A loop whose explorer reports after each of ten chunks that it could use newer weights.

    Its `versions` are those that the chunks went on with.
    """
    loop.session.settings = settings_with(sync__mode="asynchronous", rollout__swap="in_flight")
    loop.session.answer = in_turn(_granting(3, 7), Finish("the run ended"))
    loop.versions = []

    def rollout(state, leases, newer, beside):
        for _ in range(10):
            found = newer(state)
            state = found or state
            loop.versions.append(state.version)
        assert state.params == f"params {state.version}"
        return state, ["group 7"]

    loop.explorer, loop.clock.ticks = Explorer(rollout), 0.001
    return loop


def test_newer_weights_are_taken_while_completions_are_in_flight(swapping, weights):
    pull = weights.pull

    def pull_and_publish(**wanted):
        received = pull(**wanted)
        weights.version = 5
        return received

    weights.pull, swapping.clock.ticks = pull_and_publish, True
    swapping.run()
    assert swapping.versions == [5] * 10
    assert swapping.delivery.delivered == [["group 7"]]


def test_a_pull_begins_when_the_weights_could_travel(swapping, weights):
    pull, spans = weights.pull, swapping.session.spans

    def wait_and_pull(**wanted):
        time.sleep(0.02)
        began = spans.now()
        swapping.began_secs = lambda: began
        return pull(**wanted)

    weights.pull, weights.version = wait_and_pull, 4
    swapping.run()
    pulls = spans.of(SpanKind.SYNC_CHECKPOINT)
    assert [span["version"] for span in pulls] == [4] * len(pulls) != []
    assert spans.spent["sync_checkpoint"] < 0.02 * len(pulls)


def test_between_two_looks_for_newer_weights_some_time_passes(swapping, weights):
    swapping.run()
    assert swapping.versions == [3] * 10
    assert weights.looks == 2, "once for the grant, and once in ten chunks at the same time"


def test_weights_that_were_withdrawn_are_gone_without(swapping, weights):
    pull, weights.version = weights.pull, 3

    def pull_and_withdraw(**wanted):
        received = pull(**wanted)
        weights.version, weights.withdrawn = 4, True
        return received

    weights.pull = pull_and_withdraw
    swapping.run()
    assert swapping.versions == [3] * 10


def test_completions_in_flight_go_on_without_weights_whose_trainer_has_died(swapping, weights):
    pull = weights.pull

    def pull_once(**wanted):
        if weights.version == 4:
            raise WeightsTransferError("the trainer is gone")
        received, weights.version = pull(**wanted), 4
        return received

    weights.version, weights.pull = 3, pull_once
    swapping.run()
    assert swapping.versions == [3] * 10


def in_turn(*answers):
    """Answers calls one after the other."""
    left = iter(answers)
    return lambda call: next(left)


def test_an_explorer_says_what_it_has_unfinished_and_inserts_what_is_whole(loop, weights):
    """A group takes three rollouts; the weights of the second are newer."""
    begin = LeaseGrant(1, 3, False, [Lease(7, 0, 0, Prompt(0, "1+1=", "2"))])
    go_on = begin._replace(version=4, leases=[])
    wait, end = HoldBack("synchronization"), Finish("the run ended")
    loop.session.answer = in_turn(begin, go_on, wait, go_on, end)
    rollouts = []

    def rollout(state, leases, newer, beside):
        rollouts.append((state.version, state.unfinished, [lease.lease_id for lease in leases]))
        weights.version = 4
        whole = len(rollouts) == 3
        return state._replace(unfinished=() if whole else ("group 7",)), ["group 7"] * whole

    loop.explorer, loop.clock.ticks = Explorer(rollout), True
    weights.pull = lambda **_: (weights.version, "params")
    loop.run()
    assert [call.unfinished for call in loop.session.calls] == [0, 1, 1, 1, 0]
    assert [call.poll_secs for call in loop.session.calls] == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert rollouts == [(3, (), [7]), (4, ("group 7",), []), (4, ("group 7",), [])]
    assert loop.delivery.delivered == [["group 7"]]
    told = loop.session.spans.of(SpanKind.ROLLOUT)
    assert [(a["resumed"], a["carried_over"]) for a in told] == [(0, 1), (1, 1), (1, 0)]


class Streaming:
    """An explorer of two groups at once; those of even numbers take one chunk, others three."""

    streams, in_parts, groups = True, True, 2

    def __init__(self):
        self.engine, self.left, self.rollouts = Engine(), {}, []

    def compile(self, params):
        pass

    def room(self, state):
        return self.groups - len(state.unfinished)

    def rollout(self, state, leases, newer, beside):
        assert newer is None
        self.left |= {lease.lease_id: 3 if lease.lease_id % 2 else 1 for lease in leases}
        self.rollouts.append((state.version, sorted(self.left)))
        self.left = {lease_id: left - 1 for lease_id, left in self.left.items()}
        whole = [lease_id for lease_id, left in self.left.items() if left == 0]
        self.left = {lease_id: left for lease_id, left in self.left.items() if left}
        return state._replace(unfinished=tuple(self.left)), whole


@pytest.fixture
def streaming(loop, weights):
    """A loop that streams."""
    loop.explorer, loop.clock.ticks = Streaming(), True
    weights.pull = lambda **_: (weights.version, "params")
    return loop


def _granting(version, *lease_ids):
    leases = [Lease(lease_id, 0, 0, Prompt(0, "1+1=", "2")) for lease_id in lease_ids]
    return LeaseGrant(1, version, False, leases)


def test_a_streaming_explorer_takes_a_lease_for_each_group_that_is_whole(streaming):
    end = Finish("the run ended")
    streaming.session.answer = in_turn(_granting(3, 1, 2), _granting(3, 4), _granting(3), end)
    streaming.run()
    calls = streaming.session.calls
    assert [(call.unfinished, call.room) for call in calls] == [(0, None), (1, 1), (1, 1), (0, 2)]
    assert streaming.explorer.rollouts == [(3, [1, 2]), (3, [1, 4]), (3, [1])]
    assert streaming.delivery.delivered == [[2], [4], [1]]
    rollouts = streaming.session.spans.of(SpanKind.ROLLOUT)
    assert [(one["leases"], one["in_flight"]) for one in rollouts] == [([1, 2, 4], 1), ([], 0)]
    assert all(call.poll_secs == 0 for call in calls), "it waits while groups are in flight"


def test_a_streaming_explorer_without_room_does_not_ask(streaming):
    streaming.session.answer = in_turn(_granting(3, 1, 3), Finish("the run ended"))
    streaming.run()
    assert streaming.explorer.rollouts == [(3, [1, 3])] * 3
    assert len(streaming.session.calls) == 2


def run_while_published(streaming, weights, version):
    """Runs, and publishes a version in the first rollout."""
    rollout = streaming.explorer.rollout

    def publishing(*arguments):
        weights.version = version
        return rollout(*arguments)

    streaming.explorer.rollout = publishing
    streaming.run()


def test_a_streaming_explorer_begins_leases_of_newer_weights_with_these(streaming, weights):
    end = Finish("the run ended")
    streaming.session.answer = in_turn(_granting(3, 1, 2), _granting(5, 4), end, end)
    run_while_published(streaming, weights, 5)
    assert streaming.explorer.rollouts[:2] == [(3, [1, 2]), (5, [1, 4])]
    rollouts = streaming.session.spans.of(SpanKind.ROLLOUT)
    assert [one["version"] for one in rollouts] == [3, 5]


def test_newer_weights_in_flight_are_taken_without_room_for_another_group(streaming, weights):
    streaming.session.settings = settings_with(sync__mode="asynchronous", rollout__swap="in_flight")
    go_on = _granting(5)
    streaming.session.answer = in_turn(_granting(3, 1, 3), go_on, Finish("the run ended"))
    run_while_published(streaming, weights, 5)
    assert [version for version, _ in streaming.explorer.rollouts] == [3, 5, 5]


def test_a_streaming_explorer_is_held_back_only_once_nothing_is_in_flight(streaming):
    wait, end = HoldBack("synchronization"), Finish("the run ended")
    streaming.session.answer = in_turn(_granting(3, 2), wait, wait, wait, end)
    streaming.run()
    assert [call.poll_secs for call in streaming.session.calls] == [0, 0, 0, 1, 1]
    assert len(streaming.session.spans.of(SpanKind.WAIT)) == 1


def test_weights_that_nothing_can_be_generated_with_are_named_by_their_version(loop):
    def rollout(*_):
        raise NonFiniteLogitsError("The model's logits are NaN")

    loop.explorer = Explorer(rollout, version=4)
    loop.session.answer = in_turn(_granting(3, 7))
    with pytest.raises(RunEndedError, match="weights of version 4: The model's logits are NaN"):
        loop.run()
    (span,) = loop.session.spans.of(SpanKind.ROLLOUT)
    assert span["error"] == "RunEndedError"


def test_a_version_is_waited_for_and_not_asked_for_again_and_again(loop, weights):
    loop.session.answer = in_turn(_granting(7, 1), Finish("the run ended"))
    loop.explorer, loop.clock.ticks = Explorer(lambda state, *_: (state, [])), True
    loop.run()
    assert (weights.version, weights.looks) == (7, 2)
    (wait,) = loop.session.spans.of(SpanKind.WAIT)
    assert wait == {"version": 7, "reason": "synchronization", "for_whom": "the trainer"}


def evaluating(loop, *answers):
    """Runs a loop whose requests for work get these answers; returns its other calls."""
    left, others = [*answers, Finish("the run ended")], []

    def answer(call):
        if isinstance(call, AskLease):
            return left.pop(0)
        others.append(call)
        return None

    loop.session.answer, loop.clock.ticks = answer, True
    loop.run()
    return others


def test_an_evaluation_is_of_exactly_the_version_that_was_asked_for(loop, weights):
    weights.version = 5
    handed_in, awaited = evaluating(loop, GrantEvaluation(4))
    assert handed_in == HandInEvaluation("after step 4", 4, ["params 4"], 0.25)
    assert awaited.call == AwaitEvaluations(), "the explorer leaves before it is measured"
    (span,) = loop.session.spans.of(SpanKind.EVALUATION)
    assert (span["step"], span["version"], span["busy_secs"]) == (4, 4, 0.5)


def test_an_older_version_is_evaluated_and_rollouts_keep_their_weights(loop, weights):
    weights.version, versions = 5, []

    def rollout(state, leases, newer, beside):
        versions.append((state.version, state.params))
        return state, []

    loop.explorer = Explorer(rollout)
    handed_in, _ = evaluating(loop, _granting(5, 1), GrantEvaluation(4), _granting(5, 2))
    assert (handed_in.step, handed_in.items) == (4, ["params 4"])
    assert versions == [(5, "params 5")] * 2


def test_a_newer_version_that_is_evaluated_serves_the_rollouts_as_well(loop, weights):
    loop.explorer = Explorer(lambda state, *_: (state, []))
    evaluating(loop, _granting(3, 1), GrantEvaluation(4), _granting(4, 2))
    rollouts = loop.session.spans.of(SpanKind.ROLLOUT)
    assert [span["version"] for span in rollouts] == [3, 4]
    assert len(loop.session.spans.of(SpanKind.SYNC_CHECKPOINT)) == 2, "it is pulled once"


def test_an_evaluation_goes_on_after_each_chunk_and_its_time_is_told_apart(loop):
    def rollout(state, leases, newer, beside):
        for _ in range(3):
            beside()
        return state, []

    loop.evaluations.chunks, loop.explorer = 4, Explorer(rollout)
    evaluating(loop, GrantEvaluation(3), _granting(3, 1), HoldBack("synchronization"))
    assert loop.evaluations.steps == [True, True, True, False]
    (span,) = loop.session.spans.of(SpanKind.ROLLOUT)
    assert span["evaluating_secs"] == 1.5


@pytest.mark.parametrize("error", [WeightsTimeoutError("late"), WeightsTransferError("gone")])
def test_an_evaluation_of_a_version_that_is_gone_is_told_in_one_line(loop, weights, error):
    weights.version, pull = 5, weights.pull

    def pull_newest(*, exactly=None, **wanted):
        if exactly is not None:
            raise error
        return pull(**wanted)

    weights.pull, loop.explorer = pull_newest, Explorer(lambda state, *_: (state, []))
    told, _ = evaluating(loop, GrantEvaluation(4), _granting(5, 1))
    why = "its weights are gone; the newest version is 5"
    assert told == Report(RunResult(left_out={"after step 4": why}))
    assert len(loop.session.spans.of(SpanKind.ROLLOUT)) == 1, "the explorer goes on"
