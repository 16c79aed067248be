"""A snapshot holds the whole state, to the bit, or does not exist."""

from __future__ import annotations

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.runtime.snapshots import latest_snapshot, load_part, load_snapshot, save_snapshot


class State(NamedTuple):
    params: dict
    opt_state: optax.OptState
    rng: jax.Array
    step: int
    seen: np.ndarray


def make_state(seed: int) -> State:
    params = {"w": jax.random.normal(jax.random.key(seed), (5, 3)), "b": jnp.ones(3, jnp.bfloat16)}
    return State(params, optax.adamw(1e-3).init(params), jax.random.key(seed), seed, np.arange(4))


def as_bytes(state: State) -> list[bytes]:
    state = state._replace(rng=jax.random.key_data(state.rng))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def test_a_state_comes_back_to_the_bit_with_its_kinds_of_leaves(tmp_path):
    save_snapshot(tmp_path, 40, make_state(3), {"ordinal": 7})
    step, state, metadata = load_snapshot(tmp_path, None, make_state(0))
    assert (step, metadata) == (40, {"ordinal": 7})
    assert as_bytes(state) == as_bytes(make_state(3))
    assert type(state.step) is int
    assert type(state.seen) is np.ndarray
    assert state.rng.dtype == make_state(0).rng.dtype
    assert isinstance(state.params["w"], jax.Array)
    assert jax.tree.structure(state) == jax.tree.structure(make_state(0))


def test_it_loads_into_abstract_arrays(tmp_path):
    save_snapshot(tmp_path, 1, make_state(3), {})
    like = jax.eval_shape(lambda: make_state(0)._replace(step=jnp.int32(0)))
    _, state, _ = load_snapshot(tmp_path, 1, like._replace(step=0, seen=np.arange(4)))
    assert as_bytes(state) == as_bytes(make_state(3))


def test_the_newest_are_kept(tmp_path):
    assert latest_snapshot(tmp_path / "nowhere") is None
    for step in (1, 2, 3, 4):
        save_snapshot(tmp_path, step, {"x": jnp.float32(step)}, {}, keep=2)
    assert latest_snapshot(tmp_path) == 4
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000003", "snapshot_00000004"]
    assert float(load_snapshot(tmp_path, 3, {"x": jnp.float32(0)})[1]["x"]) == 3.0


def test_the_one_just_saved_stays_although_others_are_newer(tmp_path):
    for step in (5, 6, 2):
        save_snapshot(tmp_path, step, {"x": jnp.float32(step)}, {}, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000002", "snapshot_00000006"]


def test_a_snapshot_of_the_same_step_is_replaced(tmp_path):
    for value in (1.0, 2.0):
        save_snapshot(tmp_path, 9, {"x": jnp.float32(value)}, {"value": value}, keep=1)
    step, state, metadata = load_snapshot(tmp_path, 9, {"x": jnp.float32(0)})
    assert (step, float(state["x"]), metadata) == (9, 2.0, {"value": 2.0})
    assert os.listdir(tmp_path) == ["snapshot_00000009"]


def test_a_save_that_dies_leaves_the_last_one_and_no_half(tmp_path, monkeypatch):
    save_snapshot(tmp_path, 1, {"x": jnp.float32(1)}, {})
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            save_snapshot(tmp_path, 2, {"x": jnp.float32(2)}, {})
    assert latest_snapshot(tmp_path) == 1
    save_snapshot(tmp_path, 3, {"x": jnp.float32(3)}, {})
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000001", "snapshot_00000003"]


def test_what_is_not_there_and_what_does_not_fit_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no snapshot in"):
        load_snapshot(tmp_path, None, {})
    save_snapshot(tmp_path, 1, {"x": jnp.zeros(3)}, {})
    with pytest.raises(FileNotFoundError, match=r"no snapshot of step 2 .*\[1\]"):
        load_snapshot(tmp_path, 2, {"x": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"x is float32\[3\] there and float32\[4\] here"):
        load_snapshot(tmp_path, 1, {"x": jnp.zeros(4)})
    with pytest.raises(ValueError, match=r"lacks \['y'\]"):
        load_snapshot(tmp_path, 1, {"x": jnp.zeros(3), "y": jnp.zeros(1)})
    with pytest.raises(ValueError, match="keep=0"):
        save_snapshot(tmp_path, 1, {}, {}, keep=0)


def test_a_part_is_loaded_without_the_rest(tmp_path):
    save_snapshot(tmp_path, 1, make_state(3), {})
    step, part = load_part(tmp_path, None, {"params": make_state(0).params})
    assert step == 1
    wanted = make_state(3).params
    assert part["params"].keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.asarray(part["params"][name]).tobytes() == np.asarray(values).tobytes()
    with pytest.raises(ValueError, match=r"it lacks \['params/other'\]"):
        load_part(tmp_path, None, {"params": {**make_state(0).params, "other": jnp.zeros(2)}})
    with pytest.raises(FileNotFoundError, match="no snapshot"):
        load_part(tmp_path / "none", None, {"params": make_state(0).params})
