"""Work of the explorer's loop between chunks of a rollout."""

import contextlib
import types

import pytest

from rl_sync.actors.events import Finish, GrantEvaluation, HoldBack
from rl_sync.actors.explorer import ExplorerState
from rl_sync.observe.spans import SpanKind
from rl_sync.processes.calls import AskEvaluations, AskLease, HandInEvaluation, LeaseGrant
from rl_sync.processes.failures import RunError
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.rollout.stats import Stats
from rl_sync.runtime import explorer
from rl_sync.runtime.explorer import ExplorerLoop
from rl_sync.types import Lease, Prompt
from rl_sync.weights.agreement import alone
from rl_sync.weights.interface import WeightsTimeoutError


class Weights:
    """A puller of versions that are only numbers."""

    def __init__(self):
        self.version, self.looks, self.withdrawn = 3, 0, False

    def newest(self, at_least=-1, timeout_secs=0.0):
        self.looks += 1
        if timeout_secs:
            self.version = max(self.version, at_least)
        return self.version

    def pull(self, *, at_least, timeout_secs):
        if self.withdrawn:
            raise WeightsTimeoutError("gone")
        assert self.version >= at_least
        return self.version, f"params {self.version}"


@pytest.fixture
def weights():
    return Weights()


@pytest.fixture
def loop(weights, monkeypatch):
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(explorer, "time", clock)
    spans = types.SimpleNamespace(span=lambda kind: contextlib.nullcontext({}))
    session = types.SimpleNamespace(spans=spans, agree=alone)
    loop = ExplorerLoop(
        session,
        number=1,
        explorer=None,
        blank=lambda: None,
        puller=weights,
        granted_secs=lambda: 0.0,
        sync_kind=SpanKind.SYNC_CHECKPOINT,
        delivery=types.SimpleNamespace(check=lambda: None, close=lambda: None),
        examination=types.SimpleNamespace(requests=["request"], written=list),
    )
    loop.clock = clock
    return loop


def test_newer_weights_are_taken_and_others_are_not(loop, weights):
    assert loop._newer(ExplorerState(3, "params 3")) is None
    weights.version = 5
    loop.clock.now += 1
    assert loop._newer(ExplorerState(3, "params 3")) == ExplorerState(5, "params 5")


def test_between_two_looks_some_time_passes(loop, weights):
    state = ExplorerState(3, "params 3")
    for _ in range(10):
        loop._newer(state)
    assert weights.looks == 1
    loop.clock.now += 1
    loop._newer(state)
    assert weights.looks == 2


def test_weights_that_were_withdrawn_are_gone_without(loop, weights):
    weights.version, weights.withdrawn = 4, True
    assert loop._newer(ExplorerState(3, "params 3")) is None


class Master:
    """Answers requests for leases in turn, and remembers what it was told."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), []

    def __call__(self, call):
        self.calls.append(call)
        return self.answers.pop(0)


def test_an_explorer_says_what_it_has_unfinished_and_inserts_what_is_whole(loop, weights):
    """A group takes three rollouts; the weights of the second are newer."""
    begin = LeaseGrant(1, 3, False, [Lease(7, 0, 0, Prompt(0, "1+1=", "2"))])
    go_on = begin._replace(version=4, leases=[])
    master = Master(begin, go_on, HoldBack("synchronization"), go_on, Finish("the run ended"))
    spans, rollouts, inserted = [], [], []

    @contextlib.contextmanager
    def span(kind, **attributes):
        yield attributes
        spans.append((kind, attributes))

    def rollout(state, leases, newer):
        rollouts.append((state.version, state.unfinished, [lease.lease_id for lease in leases]))
        weights.version = 4
        whole = len(rollouts) == 3
        return state._replace(unfinished=() if whole else ("group 7",)), ["group 7"] * whole

    loop.session.call = master
    loop.session.patience = lambda *_: lambda: None
    loop.session.facts = {}
    loop.session.settings = types.SimpleNamespace(rollout=types.SimpleNamespace(swap="between"))
    loop.session.spans = types.SimpleNamespace(span=span, now=lambda: 0.0, record=lambda *a, **k: 0)
    loop.explorer = types.SimpleNamespace(
        compile=lambda params: None, rollout=rollout, engine=types.SimpleNamespace(stats=Stats())
    )
    loop.delivery.deliver = inserted.append
    loop.clock.monotonic = iter(range(100)).__next__
    weights.pull = lambda **_: (weights.version, "params")
    loop.run()
    assert [call.unfinished for call in master.calls] == [0, 1, 1, 1, 0]
    assert [call.poll_secs for call in master.calls] == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert rollouts == [(3, (), [7]), (4, ("group 7",), []), (4, ("group 7",), [])]
    assert inserted == [["group 7"]]
    told = [a for kind, a in spans if kind is SpanKind.ROLLOUT]
    assert [(a["resumed"], a["carried_over"]) for a in told] == [(0, 1), (1, 1), (1, 0)]


def test_weights_that_nothing_can_be_generated_with_are_named_by_their_version(loop):
    def rollout(*_):
        raise NonFiniteLogitsError("The model's logits are NaN")

    engine = types.SimpleNamespace(stats=Stats(), version=4)
    loop.explorer = types.SimpleNamespace(rollout=rollout, engine=engine)
    loop.session.settings = types.SimpleNamespace(rollout=types.SimpleNamespace(swap="between"))
    loop.session.spans.span = lambda *_, **attributes: contextlib.nullcontext(attributes)
    grant = LeaseGrant(1, 4, True, [])
    with pytest.raises(RunError, match="weights of version 4: The model's logits are NaN"):
        loop._generate(grant, ExplorerState(4, "params"))


def test_a_version_is_waited_for_and_not_asked_for_again_and_again(loop, weights):
    loop.session.spans.span = lambda kind, **attributes: contextlib.nullcontext({})
    loop._await(7, patience=lambda: None)
    assert (weights.version, weights.looks) == (7, 2)


def test_an_evaluation_is_of_the_weights_in_use_and_handed_in_once(loop, weights):
    calls = []

    def answered(call):
        calls.append(call)
        if isinstance(call, AskLease):
            return answers.pop(0)
        return None

    answers = [GrantEvaluation(4, 4), Finish("the run ended")]
    weights.version = 5
    loop.session.call = answered
    loop.session.patience = lambda *_: lambda: None
    loop.session.facts = {}
    limits = types.SimpleNamespace(wait_secs=5.0, limit_secs=5.0)
    loop.session.settings = types.SimpleNamespace(launch=limits, reward=limits)
    loop.session.spans = types.SimpleNamespace(
        span=lambda kind, **_: contextlib.nullcontext({}),
        now=lambda: 0.0,
        record=lambda *_, **__: 0,
    )
    loop.explorer = types.SimpleNamespace(
        compile=lambda params: None, complete=lambda state, requests: (state, requests)
    )
    loop.run()
    (handed_in,) = [call for call in calls if isinstance(call, HandInEvaluation)]
    assert handed_in == HandInEvaluation("after step 5", 5, ["request"])
    assert isinstance(calls[-1], AskEvaluations), "the explorer leaves before it is measured"
