"""Checkpoint transfer: complete versions only, every exact one, none lost while it is read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.weights import checkpoint
from rl_sync.weights.checkpoint import CheckpointPublisher, CheckpointPuller
from rl_sync.weights.digest import digest
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
)
from rl_sync.weights.storage import TEMPORARY, ArrayStorage
from rl_sync.weights.versions import VersionDirectory

ROOT = Path(__file__).parents[2]


def make_params(version: int, size: int = 40) -> dict:
    key = jax.random.key(version)
    return {
        "layers": [
            {"w.in": jax.random.normal(key, (size, 5))},
            {"w": jnp.ones((3,), jnp.bfloat16)},
        ],
        "count": jnp.int32(version),
        "mask": jnp.array([True, False]),
        "empty": jnp.zeros((0, 2)),
    }


SLOW = np.full((1000, 1000), 1e-3, np.float32)


@jax.jit
def slow_step(params: dict, x: np.ndarray) -> dict:
    """Counts one up, which takes some seconds."""
    x = jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x)
    return {**params, "count": params["count"] + (x[0, 0] < 2).astype(jnp.int32)}


def publish_range(publisher: CheckpointPublisher, *versions: int) -> None:
    for version in range(*versions):
        publisher.publish(version, make_params(version))


@pytest.fixture
def publish(tmp_path):
    """Makes publishers of one directory, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(**arguments) -> CheckpointPublisher:
            publisher = CheckpointPublisher(tmp_path, **arguments)
            stack.callback(publisher.close)
            return publisher

        yield make


@pytest.fixture
def puller(tmp_path):
    with contextlib.closing(CheckpointPuller(tmp_path, make_params(0), reader="e1")) as puller:
        yield puller


def test_weights_that_are_still_computed_are_published_without_a_wait(publish, puller):
    """The trainer goes on at once; the save is timed from when there are values."""

    saves = {}
    publisher = publish(
        on_saved=lambda version, secs: saves.update({version: time.monotonic() - secs})
    )
    publisher.publish(0, make_params(0))  # Compiles what is not to be timed.
    puller.pull(exactly=0, timeout_secs=30)
    jax.block_until_ready(slow_step(make_params(1), SLOW))
    dispatched = time.monotonic()
    params = slow_step(make_params(1), SLOW)
    publisher.publish(1, params)
    published = time.monotonic()
    jax.block_until_ready(params)
    half = (dispatched + time.monotonic()) / 2
    _, received = puller.pull(exactly=1, timeout_secs=30)
    assert received["count"] == 2
    publisher.close()
    assert published < half < saves[1]


def test_what_is_pulled_is_what_was_published_to_the_bit_and_where_it_was_asked_for(
    publish, tmp_path
):
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_params(0)
    )
    publish().publish(3, make_params(3))
    with contextlib.closing(CheckpointPuller(tmp_path, like)) as puller:
        version, params = puller.pull(timeout_secs=30)
        assert version == puller.newest() == 3
    assert digest(params) == digest(make_params(3))
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(params))


def test_exact_pulls_get_each_of_eight_versions_while_the_trainer_runs_ahead(publish, puller):
    publisher = publish(keep=8)
    trainer = threading.Thread(
        target=lambda: [publisher.publish(v, make_params(v)) for v in range(8)]
    )
    trainer.start()
    for version in range(8):
        pulled, params = puller.pull(exactly=version, timeout_secs=30)
        assert pulled == version
        assert digest(params) == digest(make_params(version))
    trainer.join(30)


def test_a_step_that_donates_right_after_publish_changes_nothing(publish, puller):
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    publisher = publish()
    params = {"w": jnp.zeros((300, 300)), "n": jnp.int32(0)}
    puller = CheckpointPuller(publisher._directory.root, params)
    for version in range(4):
        publisher.publish(version, params)
        donated = params["w"]
        params = step(params)
        assert donated.is_deleted()
        pulled = puller.pull(exactly=version, timeout_secs=30)[1]
        assert float(pulled["w"].min()) == float(pulled["w"].max()) == version
    puller.close()


def test_at_least_waits_for_a_newer_version(publish, puller):
    publisher = publish()
    publisher.publish(1, make_params(1))
    assert puller.pull(at_least=1, timeout_secs=30)[0] == 1
    threading.Timer(0.3, lambda: publisher.publish(2, make_params(2))).start()
    assert puller.pull(at_least=2, timeout_secs=30)[0] == 2


def test_a_pull_that_waits_in_vain_says_for_what(publish, puller, tmp_path):
    assert puller.newest() == -1
    with pytest.raises(WeightsTimeoutError, match=r"e1 waited 0\.1 s for any version .* none"):
        puller.pull(timeout_secs=0.1)
    publisher = publish()
    for version in (4, 6):
        publisher.publish(version, make_params(version))
    puller.pull(exactly=6, timeout_secs=30)
    with pytest.raises(WeightsTimeoutError, match=r"for version 5 .* Versions there: 4, 6\."):
        puller.pull(exactly=5, timeout_secs=0.1)
    with pytest.raises(WeightsTimeoutError, match="a version of at least 7"):
        puller.pull(at_least=7, timeout_secs=0.1)


def test_only_the_newest_are_kept_and_readers_meet_no_gap(publish, tmp_path):
    """Two readers pull without pause while versions come and go; none of their reads fails."""
    publisher = publish()
    publisher.publish(0, make_params(0))
    stop, seen, errors = threading.Event(), [], []

    def read(name: str) -> None:
        with contextlib.closing(CheckpointPuller(tmp_path, make_params(0), reader=name)) as puller:
            while not stop.is_set():
                try:
                    version, params = puller.pull(timeout_secs=30)
                    seen.append((version, int(params["count"])))
                except Exception as error:
                    errors.append(error)

    readers = [threading.Thread(target=read, args=(f"r{i}",)) for i in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 25):
        publisher.publish(version, make_params(version))
    publisher.close()
    stop.set()
    for reader in readers:
        reader.join(30)
    assert errors == []
    assert all(version == count for version, count in seen)
    assert len({version for version, _ in seen}) > 3
    VersionDirectory(tmp_path).retain(3, 600)
    assert VersionDirectory(tmp_path).versions() == [22, 23, 24]


def test_a_version_that_a_reader_holds_outlives_its_turn(publish, puller, tmp_path, monkeypatch):
    directory = VersionDirectory(tmp_path)
    withdrawn = []
    withdraw = VersionDirectory._withdraw

    def note_and_withdraw(self: VersionDirectory, version: int) -> None:
        withdrawn.append(version)
        withdraw(self, version)

    monkeypatch.setattr(VersionDirectory, "_withdraw", note_and_withdraw)
    publisher = publish()
    publisher.publish(0, make_params(0))
    puller.pull(exactly=0, timeout_secs=30)
    with directory.held("slow", 0):
        publish_range(publisher, 1, 6)
        publisher.close()
        assert directory.versions() == [0, 3, 4, 5]
        assert withdrawn == [1, 2]  # the held one was there all the time
        directory.retain(3, expiry_secs=0.0)
        assert directory.versions() == [3, 4, 5]
    assert os.listdir(tmp_path / "readers") == []


def test_a_read_that_fails_is_tried_again_with_a_newer_version(
    publish, puller, tmp_path, monkeypatch
):
    publisher = publish()
    publisher.publish(1, make_params(1))
    assert puller.pull(exactly=1, timeout_secs=30)[0] == 1
    read = ArrayStorage.read

    def vanish(storage, path, like):
        if path.name.endswith("1"):
            VersionDirectory(tmp_path).delete(1)
            publisher.publish(2, make_params(2))
        return read(storage, path, like)

    monkeypatch.setattr(ArrayStorage, "read", vanish)
    version, params = puller.pull(timeout_secs=30)
    assert (version, int(params["count"])) == (2, 2)


def test_an_exact_read_that_fails_once_is_tried_again_with_the_same_version(
    publish, puller, monkeypatch
):
    publish().publish(1, make_params(1))
    read, calls = ArrayStorage.read, []

    def fail_once(storage, path, like):
        calls.append(path)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return read(storage, path, like)

    monkeypatch.setattr(ArrayStorage, "read", fail_once)
    assert puller.pull(exactly=1, timeout_secs=30)[0] == 1
    assert len(calls) == 2


def test_weights_that_changed_on_the_way_are_refused_with_both_digests(
    publish, puller, tmp_path, monkeypatch
):
    publish().publish(1, make_params(1))
    read = ArrayStorage.read

    def flip(storage, path, like):
        named = read(storage, path, like)
        return {**named, "params/count": named["params/count"] ^ 1}

    monkeypatch.setattr(ArrayStorage, "read", flip)
    with pytest.raises(WeightsMismatchError) as caught:
        puller.pull(exactly=1, timeout_secs=30)
    assert caught.value.version == 1
    assert caught.value.published == digest(make_params(1))
    assert caught.value.received != caught.value.published
    trusting = CheckpointPuller(tmp_path, make_params(0), check_digest=False)
    version, params = trusting.pull(exactly=1, timeout_secs=30)
    assert version == 1
    assert digest(params) != caught.value.published


def test_weights_of_another_model_are_refused_by_name(publish, tmp_path):
    publish().publish(0, make_params(0))
    with (
        contextlib.closing(CheckpointPuller(tmp_path, make_params(0, size=41))) as puller,
        pytest.raises(ValueError, match=r"params/layers/0/w\.in is float32\[40, 5\] there"),
    ):
        puller.pull(timeout_secs=30)


class SlowStorage(ArrayStorage):
    """A disk that takes its time."""

    def write(self, directory, arrays):
        time.sleep(0.5)
        super().write(directory, arrays)


def test_publish_returns_at_once_while_an_earlier_save_runs(publish, puller, monkeypatch):
    monkeypatch.setattr(checkpoint, "ArrayStorage", SlowStorage)
    publisher = publish(keep=4)
    publisher._copy(make_params(0))
    start = time.monotonic()
    publisher.publish(0, make_params(0))
    publisher.publish(1, make_params(1))
    assert time.monotonic() - start < 0.4
    publisher.publish(2, make_params(2))  # waits for its turn: no version is dropped
    assert [puller.pull(exactly=v, timeout_secs=30)[0] for v in range(3)] == [0, 1, 2]


def test_only_where_it_may_does_a_newer_version_replace_one_that_waits(publish, monkeypatch):
    monkeypatch.setattr(checkpoint, "ArrayStorage", SlowStorage)
    publisher = publish(may_skip=True)
    for version in range(6):
        publisher.publish(version, make_params(version))
    publisher.close()
    versions = publisher._directory.versions()
    assert versions[-1] == 5
    assert len(versions) < 4


def test_a_version_that_can_be_saved_does_not_give_way_to_one_that_is_still_computed(publish):
    """As when the trainer has dispatched its next step before the last version is saved."""

    saved = []
    publisher = publish(may_skip=True, on_saved=lambda version, _: saved.append(version))
    params = jax.block_until_ready(slow_step(make_params(0), SLOW))
    for version in range(1, 4):
        publisher.publish(version, params := slow_step(params, SLOW))
    publisher.close()
    assert saved[-2:] == [2, 3]


def test_a_publisher_that_cannot_get_its_turn_says_what_is_in_the_way(publish, monkeypatch):
    monkeypatch.setattr(checkpoint, "ArrayStorage", SlowStorage)
    publisher = publish(timeout_secs=0.1)
    publisher.publish(0, make_params(0))
    with pytest.raises(WeightsTimeoutError, match=r"to publish version \d: version 0 is still"):
        publish_range(publisher, 1, 4)
    publisher._timeout_secs = 30


def test_a_save_that_fails_is_an_error_of_the_next_publish(tmp_path, monkeypatch):
    publisher = CheckpointPublisher(tmp_path)

    def full(storage, directory, arrays):
        raise OSError("No space left on device")

    monkeypatch.setattr(ArrayStorage, "write", full)
    publisher.publish(0, make_params(0))
    with pytest.raises(WeightsTransferError, match="No space left on device"):
        publish_range(publisher, 1, 9)
    with pytest.raises(WeightsTransferError):
        publisher.close()


def test_saves_are_reported_with_the_time_they_took(publish):
    saved = []
    publisher = publish(on_saved=lambda version, secs: saved.append((version, secs > 0)))
    publisher.publish(0, make_params(0))
    publisher.publish(5, make_params(5))
    publisher.close()
    assert saved == [(0, True), (5, True)]


def test_a_trainer_that_resumes_takes_back_the_versions_after_it(publish, puller):
    first = publish()
    for version in range(3):
        first.publish(version, make_params(version))
    first.close()
    second = publish(resume_from=1)
    assert puller.newest() == 1
    second.publish(1, make_params(11))
    second.close()
    assert int(puller.pull(exactly=1, timeout_secs=30)[1]["count"]) == 11


def test_too_few_versions_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep=2"):
        CheckpointPublisher(tmp_path, keep=2)


def test_a_killed_saver_leaves_whole_versions_and_its_successor_clears_the_rest(tmp_path):
    directory = tmp_path / "weights"
    saver = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("checkpoint_saver.py")), str(directory)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline, "the saver never wrote"
            names = os.listdir(directory) if directory.exists() else []
            begun = [name for name in names if TEMPORARY in name]
            if begun and any(
                name.startswith("version_") and TEMPORARY not in name for name in names
            ):
                break
    finally:
        saver.kill()
        saver.wait(30)
    names = os.listdir(directory)
    if not any(TEMPORARY in name for name in names):  # it finished between the look and the kill
        (directory / f"version_99999999{TEMPORARY}").mkdir()
    like = [jax.ShapeDtypeStruct((200_000,), jnp.float32)] * 60
    with contextlib.closing(CheckpointPuller(directory, like)) as puller:
        version, params = puller.pull(timeout_secs=30)
        assert version == puller.newest() < 10_000
    assert {float(leaf.max()) for leaf in params} == {float(leaf.min()) for leaf in params}
    assert float(params[0][0]) == version
    CheckpointPublisher(directory).close()
    assert all(name == "readers" or TEMPORARY not in name for name in os.listdir(directory))
