"""The trainer's step while it is compiled."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from rl_sync.cluster.session import RunStoppedError
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.types import Rows, TrainBatch


class Compiling:
    """A session and a trainer whose step is compiled when it is told to be."""

    def __init__(self):
        self.done, self.stopped, self.agreed = threading.Event(), False, []
        self.spans = SimpleNamespace(span=lambda *_, **__: contextlib.nullcontext({}))
        self.showing = contextlib.nullcontext

    def compile_step(self, state, batch):
        assert self.done.wait(10)
        return "compiled"

    def agree(self, what, thunk):
        self.agreed.append(what)
        return thunk()

    def check(self):
        if self.stopped:
            raise RunStoppedError("interrupted")


BATCH = TrainBatch(Rows(*[np.zeros((2, 3))] * 4), np.zeros(2))


def test_a_run_that_is_stopped_does_not_wait_for_the_compiler():
    compiling = Compiling()
    steps = CompiledSteps(compiling, compiling, None)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(steps.of, BATCH)
        compiling.stopped = True
        with pytest.raises(RunStoppedError):
            waiting.result(5)
        compiling.done.set()


def test_a_team_agrees_once_for_each_shape_that_its_step_is_compiled():
    compiling = Compiling()
    steps = CompiledSteps(compiling, compiling, None)
    compiling.done.set()
    assert [steps.of(BATCH), steps.of(BATCH)] == ["compiled"] * 2
    assert compiling.agreed == ["compiled"]


def test_a_shape_that_is_needed_does_not_wait_for_those_that_are_not():
    compiling = Compiling()
    steps = CompiledSteps(compiling, compiling, None)
    others = [BATCH._replace(rewards=np.zeros(size)) for size in (3, 4)]
    compile_step, compiling.compile_step = (
        compiling.compile_step,
        lambda state, batch: "needed" if batch is others[1] else compile_step(state, batch),
    )
    for batch in (BATCH, *others):
        steps.prepare(batch)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        needed = pool.submit(steps.of, others[1])
        try:
            assert needed.result(5) == "needed"
        finally:
            compiling.done.set()
