"""A snapshot holds the whole state, to the bit, or does not exist."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.checkpoints.checksums import seal
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder, load_part, on_host
from rl_sync.checkpoints.snapshots import (
    SAVED_SECS,
    Retention,
    SnapshotError,
    latest_snapshot,
    newest_whole,
    one_a_period,
    snapshot_path,
    snapshot_steps,
)


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


@pytest.mark.gate
def test_a_state_comes_back_to_the_bit_with_its_kinds_of_leaves(tmp_path):
    SnapshotFolder(tmp_path).save(40, make_state(3), {"ordinal": 7})
    step, state, metadata = SnapshotFolder(tmp_path).load(None, make_state(0))
    assert (step, metadata) == (40, {"ordinal": 7})
    assert as_bytes(state) == as_bytes(make_state(3))
    assert type(state.step) is int
    assert type(state.seen) is np.ndarray
    assert state.rng.dtype == make_state(0).rng.dtype
    assert isinstance(state.params["w"], jax.Array)
    assert jax.tree.structure(state) == jax.tree.structure(make_state(0))


def test_it_loads_into_abstract_arrays(tmp_path):
    SnapshotFolder(tmp_path).save(1, make_state(3), {})
    abstract = jax.eval_shape(lambda: make_state(0)._replace(step=jnp.int32(0)))
    _, state, _ = SnapshotFolder(tmp_path).load(1, abstract._replace(step=0, seen=np.arange(4)))
    assert as_bytes(state) == as_bytes(make_state(3))


def test_the_newest_are_kept(tmp_path):
    assert latest_snapshot(tmp_path / "nowhere") is None
    for step in (1, 2, 3, 4):
        SnapshotFolder(tmp_path).save(step, {"x": jnp.float32(step)}, {}, Retention(2))
    assert latest_snapshot(tmp_path) == 4
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000003", "snapshot_00000004"]
    assert float(SnapshotFolder(tmp_path).load(3, {"x": jnp.float32(0)})[1]["x"]) == 3.0


def test_a_snapshot_that_is_kept_besides_stays_however_many_are_newer(tmp_path):
    for step in (1, 2, 3, 4, 5):
        SnapshotFolder(tmp_path).save(step, {"x": jnp.float32(step)}, {}, Retention(2, [2]))
    assert [int(name[-1]) for name in sorted(os.listdir(tmp_path))] == [2, 4, 5]


@pytest.mark.parametrize(
    ("hours", "chosen"),
    [
        ([0, 1, 2, 3, 4, 5], [0, 2, 4]),
        ([0, 0.5, 1.9, 2.1, 4.0, 4.2], [0, 3, 5]),
        ([0, 9, 9.5, 11], [0, 1, 3]),
        ([], []),
    ],
)
def test_one_snapshot_of_two_hours_is_kept_for_its_age(hours, chosen):
    assert one_a_period({step: 3600 * one for step, one in enumerate(hours)}, 7200) == chosen


def test_the_first_of_each_period_stays_however_many_are_newer(tmp_path):
    for step in range(12):
        metadata = {SAVED_SECS: 1000.0 + 60 * step}
        state = {"x": jnp.float32(step)}
        SnapshotFolder(tmp_path).save(step, state, metadata, Retention(2, every_secs=240))
    assert snapshot_steps(tmp_path) == [0, 4, 8, 10, 11]
    SnapshotFolder(tmp_path).save(12, {"x": jnp.float32(12)}, {SAVED_SECS: 5000.0}, Retention(2))
    assert snapshot_steps(tmp_path) == [11, 12], "without the setting their age does not count"


def test_a_snapshot_that_does_not_say_its_time_has_that_of_its_file(tmp_path):
    for step in (1, 2, 3, 4):
        SnapshotFolder(tmp_path).save(step, {"x": jnp.float32(step)}, {}, Retention(9))
        at = 1000.0 * step
        os.utime(snapshot_path(tmp_path, step) / "metadata.json", (at, at))
    SnapshotFolder(tmp_path).save(5, {"x": jnp.float32(5)}, {}, Retention(1, every_secs=2000))
    assert snapshot_steps(tmp_path) == [1, 3, 5]


def test_the_one_just_saved_stays_although_others_are_newer(tmp_path):
    for step in (5, 6, 2):
        SnapshotFolder(tmp_path).save(step, {"x": jnp.float32(step)}, {}, Retention(2))
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000002", "snapshot_00000006"]


def test_a_snapshot_of_the_same_step_is_replaced(tmp_path):
    for value in (1.0, 2.0):
        SnapshotFolder(tmp_path).save(9, {"x": jnp.float32(value)}, {"value": value}, Retention(1))
    step, state, metadata = SnapshotFolder(tmp_path).load(9, {"x": jnp.float32(0)})
    assert (step, float(state["x"]), metadata) == (9, 2.0, {"value": 2.0})
    assert os.listdir(tmp_path) == ["snapshot_00000009"]


def test_a_save_that_dies_leaves_the_last_one_and_no_half(tmp_path, monkeypatch):
    SnapshotFolder(tmp_path).save(1, {"x": jnp.float32(1)}, {})
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(
            SnapshotError, match=r"step 2 cannot be .*OSError: full.*stay: steps \[1\]"
        ):
            SnapshotFolder(tmp_path).save(2, {"x": jnp.float32(2)}, {})
    assert os.listdir(tmp_path) == ["snapshot_00000001"], "a full disk needs the room"
    SnapshotFolder(tmp_path).save(3, {"x": jnp.float32(3)}, {})
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000001", "snapshot_00000003"]


def test_what_is_not_there_and_what_does_not_fit_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no snapshot in"):
        SnapshotFolder(tmp_path).load(None, {})
    SnapshotFolder(tmp_path).save(1, {"x": jnp.zeros(3)}, {})
    with pytest.raises(FileNotFoundError, match=r"no snapshot of step 2 .*\[1\]"):
        SnapshotFolder(tmp_path).load(2, {"x": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"x is float32\[3\] there and float32\[4\] here"):
        SnapshotFolder(tmp_path).load(1, {"x": jnp.zeros(4)})
    with pytest.raises(ValueError, match=r"lacks \['y'\]"):
        SnapshotFolder(tmp_path).load(1, {"x": jnp.zeros(3), "y": jnp.zeros(1)})
    with pytest.raises(ValueError, match="keep=0"):
        SnapshotFolder(tmp_path).save(1, {}, {}, Retention(0))


def test_a_part_is_loaded_without_the_rest(tmp_path):
    SnapshotFolder(tmp_path).save(1, make_state(3), {"seed": 3})
    step, part, metadata = load_part(tmp_path, None, {"params": make_state(0).params})
    assert (step, metadata) == (1, {"seed": 3})
    wanted = make_state(3).params
    assert part["params"].keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.asarray(part["params"][name]).tobytes() == np.asarray(values).tobytes()
    with pytest.raises(ValueError, match=r"it lacks \['params/other'\]"):
        load_part(tmp_path, None, {"params": {**make_state(0).params, "other": jnp.zeros(2)}})
    with pytest.raises(FileNotFoundError, match="no snapshot"):
        load_part(tmp_path / "none", None, {"params": make_state(0).params})


LIKE = {"x": np.zeros(300, np.float32), "opt_state": np.zeros(3, np.float32)}


def save_two(directory):
    """Saves two snapshots; returns the folder of the newer one."""
    for step in (1, 2):
        state = {"x": jnp.full(300, float(step)), "opt_state": jnp.zeros(3)}
        SnapshotFolder(directory).save(step, state, {"position": step})
    return directory / "snapshot_00000002"


def files_in(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "other content than": flip,
    "bytes instead of": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "it lacks": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_of_any_file_leads_to_the_snapshot_before_it_and_is_said(kind, tmp_path, caplog):
    newer, saved = save_two(tmp_path / "run"), tmp_path / "saved"
    shutil.copytree(newer, saved)
    assert len(files_in(saved)) > 6
    for number in range(len(files_in(saved))):
        caplog.clear()
        shutil.rmtree(newer, ignore_errors=True)  # The load before has set it aside.
        shutil.copytree(saved, newer)
        path = files_in(newer)[number]
        DAMAGES[kind](path)
        step, state, metadata = SnapshotFolder(tmp_path / "run").load(None, LIKE)
        assert (step, metadata, float(state["x"][7])) == (1, {"position": 1}, 1.0), path
        (said,) = (r.getMessage() for r in caplog.records if r.name.endswith(".snapshots"))
        assert "snapshot_00000002 is damaged: " in said
        assert "The snapshot of step 1 is used instead." in said
        assert kind in said or path.name == "files.json"


def test_a_damaged_snapshot_that_is_asked_for_is_refused(tmp_path):
    flip(save_two(tmp_path) / "metadata.json")
    with pytest.raises(SnapshotError, match=r"snapshot_00000002 is damaged: metadata.json has"):
        SnapshotFolder(tmp_path).load(2, LIKE)


def test_what_orbax_cannot_read_is_damaged_too(tmp_path, caplog):
    path = save_two(tmp_path)
    (path / "arrays" / "_METADATA").write_text("{}")
    seal(path)
    step, _, _ = SnapshotFolder(tmp_path).load(None, LIKE)
    assert step == 1
    assert "snapshot_00000002 is damaged: it cannot be read (" in caplog.text


def test_a_damaged_snapshot_can_be_set_aside_and_is_in_nobody_s_way(tmp_path):
    said = []
    for name in ("damaged_00000002", "damaged_00000002-0"):
        flip(save_two(tmp_path) / "metadata.json")
        assert newest_whole(tmp_path, aside=True, say=said.append) == 1
        assert (tmp_path / name / "metadata.json").exists()
        assert said[-1].endswith(f"It is now called {name}.")
    save_two(tmp_path)
    assert newest_whole(tmp_path) == 2
    assert len(os.listdir(tmp_path)) == 4


def test_without_a_whole_snapshot_nothing_is_moved_and_each_is_named(tmp_path):
    assert newest_whole(tmp_path) is None
    save_two(tmp_path)
    for step, name in ((1, "files.json"), (2, "metadata.json")):
        (tmp_path / f"snapshot_0000000{step}" / name).unlink()
    with pytest.raises(SnapshotError, match=r"0002: it lacks metadata.json; .*1: it lacks files"):
        newest_whole(tmp_path, aside=True)
    with pytest.raises(SnapshotError, match=r"No snapshot in .* --config.workdir to start again"):
        SnapshotFolder(tmp_path).load(None, LIKE)
    assert sorted(os.listdir(tmp_path)) == ["snapshot_00000001", "snapshot_00000002"]


def test_a_snapshot_of_another_model_is_not_taken_for_a_damaged_one(tmp_path):
    save_two(tmp_path)
    with pytest.raises(ValueError, match="written for another model"):
        SnapshotFolder(tmp_path).load(None, {**LIKE, "x": jnp.zeros(4)})


def test_a_copy_on_the_host_is_saved_like_the_state_and_outlives_it(tmp_path):
    state = {
        "weights": jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4),
        "key": jax.random.key(3),
        "count": jnp.int32(7),
        "none": jnp.zeros((0, 2)),
    }
    copied = on_host(state)
    expected = jax.tree.map(lambda leaf: np.array(plain_of(leaf)), state)
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)
    donated(state["weights"])
    assert state["weights"].is_deleted()
    SnapshotFolder(tmp_path).save(3, copied, {"a": 1})
    abstract = {**state, "weights": jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)}
    step, loaded, metadata = SnapshotFolder(tmp_path).load(None, abstract)
    assert (step, metadata) == (3, {"a": 1})
    for name, value in expected.items():
        assert np.array(plain_of(loaded[name])).tobytes() == value.tobytes()


def plain_of(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
