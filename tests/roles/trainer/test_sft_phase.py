"""SFT: what a run is told of it, and what is left of one that is stopped."""

from __future__ import annotations

import types

import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import SnapshotError, latest_snapshot
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError
from rl_sync.learning.train_state import TrainState
from rl_sync.messages.master_calls import EnterPhase, Report, WriteMetrics
from rl_sync.roles.trainer.sft_phase import SftPhase
from tests.cluster.memory_session import MemorySession


class FakeTrainer:
    """Adds the first token of its batch, which tells its step, to its only parameter."""

    def start(self):
        return TrainState(jnp.int32(0), {"x": jnp.float32(1)}, {"seen": jnp.int32(0)}, None)

    abstract_sft_state = start

    def sft_step(self, state, tokens, mask):
        params = {"x": state.params["x"] * 0.5 + jnp.float32(tokens[0, 0])}
        seen = {"seen": state.opt_state["seen"] + 1}
        return state._replace(params=params, opt_state=seen), {
            "loss": params["x"],
            "skipped_updates": jnp.float32(0),
        }


class Warming:
    """SFT whose session is stopped at the check before a step, or whose probe fails."""

    def __init__(self, directory, steps, stopped_at=None, failing=False):
        self.calls, self.taken, self.resumed = [], [], []
        self.session = MemorySession(
            self._call,
            sft__steps=steps,
            sft__probe_every_steps=2,
            sft__probe_problems=1,
            sft__batch_size=4,
        )
        self.session.check = self._check
        self.session.resumed = lambda step, sft_step: self.resumed.append((step, sft_step))
        self.stopped_at, self.failing = stopped_at, failing
        evaluator = types.SimpleNamespace(accuracy=self._accuracy)
        trainer = FakeTrainer()
        folder = SnapshotFolder(directory, [0], self.session.agree)
        self.sft = SftPhase(self.session, trainer, evaluator, None, folder)
        self.sft._batch = self._batch

    def run(self, goes_on=False):
        return self.sft.run(FakeTrainer().start, goes_on)

    def _batch(self, step):
        self.taken.append(step)
        return np.full((4, 3), step, np.int32), np.ones((4, 3), bool)

    def _call(self, call):
        self.calls.append(call)

    def _check(self):
        if len(self.taken) + 1 == self.stopped_at:
            raise RunStoppedError("interrupted")

    def _accuracy(self, params, problems):
        if self.failing:
            raise RemoteError("the judges are gone")
        return {"accuracy": 0.25, "problems": 1, "accuracy_seen": 1.0}


@pytest.mark.parametrize(
    ("steps", "told"),
    [(0, []), (3, [EnterPhase, WriteMetrics, Report, WriteMetrics, Report])],
)
def test_sft_is_announced_if_there_is_one_and_its_probes_are_reported(tmp_path, steps, told):
    warming = Warming(tmp_path, steps)
    assert warming.run().opt_state["seen"] == steps
    assert [type(call) for call in warming.calls] == told
    if steps:
        assert warming.calls[0] == EnterPhase("sft")
        values = warming.calls[-1].result.sft
        assert values["probe_accuracy"] == 0.25
        assert values["probe_accuracy_seen"] == 1.0
        assert values["step"] == steps
    assert latest_snapshot(tmp_path) == (steps or None), "a trainer that dies begins there"


def test_sft_that_is_stopped_goes_on_at_its_step_with_the_same_bits(tmp_path):
    whole = Warming(tmp_path / "whole", 9).run()
    with pytest.raises(RunStoppedError):
        Warming(tmp_path / "parts", 9, stopped_at=4).run()
    assert latest_snapshot(tmp_path / "parts") == 3
    again = Warming(tmp_path / "parts", 9, stopped_at=3)
    with pytest.raises(RunStoppedError):
        again.run()
    assert again.taken == [4, 5]
    rest = Warming(tmp_path / "parts", 9)
    state = rest.run()
    assert rest.taken == [6, 7, 8, 9]
    assert rest.resumed == [(0, 5)]
    assert [call.step for call in rest.calls if isinstance(call, WriteMetrics)] == [6, 8, 9]
    assert state.params["x"].tobytes() == whole.params["x"].tobytes()
    assert state.opt_state["seen"] == whole.opt_state["seen"] == 9
    rest.sft.forget()
    assert latest_snapshot(tmp_path / "parts") is None


def test_sft_that_is_stopped_before_its_first_step_saves_nothing(tmp_path):
    with pytest.raises(RunStoppedError):
        Warming(tmp_path, 9, stopped_at=1).run()
    assert latest_snapshot(tmp_path) is None


def test_sft_whose_probe_fails_saves_what_it_has(tmp_path):
    with pytest.raises(RemoteError):
        Warming(tmp_path, 9, failing=True).run()
    assert latest_snapshot(tmp_path) == 2


def test_sft_whose_snapshot_is_damaged_does_not_go_on_from_it(tmp_path):
    with pytest.raises(RunStoppedError):
        Warming(tmp_path, 9, stopped_at=4).run()
    (metadata,) = tmp_path.glob("snapshot_*/metadata.json")
    metadata.write_text("[]")
    with pytest.raises(SnapshotError, match=r"metadata.json has other content than was written"):
        Warming(tmp_path, 9).run()


def test_sft_tells_how_far_it_is_and_its_loss(tmp_path):
    warming = Warming(tmp_path, 9, stopped_at=4)
    with pytest.raises(RunStoppedError):
        warming.run()
    assert warming.session.facts["step"] == 2, "of step 3 the loss is not known yet"
    assert warming.session.facts["loss"] == 2.75


def test_a_run_in_its_rl_phase_keeps_its_records_when_it_begins_from_sft_again(tmp_path):
    first = Warming(tmp_path, steps=4)
    state = first.run()
    again = Warming(tmp_path, steps=4)
    assert again.run(goes_on=True).params == state.params
    assert (again.taken, again.calls, again.resumed) == ([], [], [])
