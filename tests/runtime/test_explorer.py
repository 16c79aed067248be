"""What the explorer's program does between chunks of a rollout."""

import contextlib
import types

import pytest

from rl_sync.actors.explorer import ExplorerState
from rl_sync.observe.spans import SpanKind
from rl_sync.runtime import explorer
from rl_sync.runtime.explorer import ExplorerProgram
from rl_sync.weights.interface import WeightsTimeoutError


class Weights:
    """A puller of versions that are only numbers."""

    def __init__(self):
        self.version, self.looks, self.withdrawn = 3, 0, False

    def newest(self):
        self.looks += 1
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
def program(weights, monkeypatch):
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(explorer, "time", clock)
    spans = types.SimpleNamespace(span=lambda kind: contextlib.nullcontext({}))
    session = types.SimpleNamespace(spans=spans)
    program = ExplorerProgram(
        session, 1, None, None, None, weights, lambda: 0.0, SpanKind.SYNC_CHECKPOINT, None, "groups"
    )
    program.clock = clock
    return program


def test_newer_weights_are_taken_and_others_are_not(program, weights):
    assert program._newer(ExplorerState(3, "params 3")) is None
    weights.version = 5
    program.clock.now += 1
    assert program._newer(ExplorerState(3, "params 3")) == ExplorerState(5, "params 5")


def test_between_two_looks_some_time_passes(program, weights):
    state = ExplorerState(3, "params 3")
    for _ in range(10):
        program._newer(state)
    assert weights.looks == 1
    program.clock.now += 1
    program._newer(state)
    assert weights.looks == 2


def test_weights_that_were_withdrawn_are_gone_without(program, weights):
    weights.version, weights.withdrawn = 4, True
    assert program._newer(ExplorerState(3, "params 3")) is None
