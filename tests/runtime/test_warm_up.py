"""What a run is told of its warm-up."""

import contextlib
import types

import numpy as np
import pytest

from rl_sync.runtime.warm_up import WarmUp


@pytest.mark.parametrize(
    ("steps", "told"), [(0, []), (3, ["phase", "metrics", "result", "metrics", "result"])]
)
def test_a_warm_up_is_announced_if_there_is_one_and_its_probes_are_reported(steps, told):
    calls, fields = [], []

    def call(method, **arguments):
        calls.append(method)
        fields.append(arguments)

    section = types.SimpleNamespace(
        steps=steps, probe_every_steps=2, probe_problems=1, seed=0, batch_size=4
    )
    session = types.SimpleNamespace(
        settings=types.SimpleNamespace(warm_up=section, seed=0),
        spans=types.SimpleNamespace(span=lambda kind, step: contextlib.nullcontext({})),
        call=call,
        check=lambda: None,
        facts={},
    )
    trainer = types.SimpleNamespace(
        warm_up_step=lambda state, *batch: (state + 1, {"loss": 0.5, "skipped_updates": 0.0})
    )
    evaluator = types.SimpleNamespace(
        accuracy=lambda params, problems: {"accuracy": 0.25, "problems": 1, "accuracy_seen": 1.0}
    )
    rows = np.zeros((4, 3), np.int32), np.ones((4, 3), bool)
    task = types.SimpleNamespace(demonstrations=["1=1"], encode_demonstrations=lambda texts: rows)

    class State(int):
        params = None

        def __add__(self, other):
            return State(int(self) + other)

    assert WarmUp(session, trainer, evaluator, task).run(State(0)) == steps
    assert calls == told
    if steps:
        assert fields[0] == {"phase": "warm-up"}
        assert fields[-1]["values"]["warm_up"]["probe_accuracy"] == 0.25
        assert fields[-1]["values"]["warm_up"]["probe_accuracy_seen"] == 1.0
        assert fields[-1]["values"]["warm_up"]["steps"] == steps
