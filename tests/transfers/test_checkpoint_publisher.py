"""The saving end: only complete versions, every exact one, and the right number of them."""

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
import pytest

from rl_sync.transfers import checkpoint
from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError
from rl_sync.weights.storage import TEMPORARY, ArrayStorage
from rl_sync.weights.versions import VersionDirectory
from tests.transfers.small_weights import SLOW, make_params, publish_range, slow_step

ROOT = Path(__file__).parents[2]


@pytest.mark.gate
def test_weights_that_are_still_computed_are_published_without_a_wait(publish, puller):
    """The trainer goes on immediately; the time of the save begins when the values are there."""

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


@pytest.mark.gate
def test_only_the_newest_are_kept_and_readers_meet_no_gap(publish, tmp_path):
    """Two readers pull without pause while versions are saved and deleted; no read fails."""
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


class SlowStorage(ArrayStorage):
    """Storage that takes its time."""

    def write(self, directory, arrays):
        time.sleep(0.5)
        super().write(directory, arrays)


def test_of_the_computed_versions_that_wait_only_the_newest_is_saved(publish, monkeypatch):
    begun, held, saved = threading.Event(), threading.Event(), []

    class HeldStorage(ArrayStorage):
        def write(self, directory, arrays):
            begun.set()
            assert held.wait(30)
            super().write(directory, arrays)

    monkeypatch.setattr(checkpoint, "ArrayStorage", HeldStorage)
    publisher = publish(may_skip=True, on_saved=lambda version, secs: saved.append(version))
    publisher.publish(0, make_params(0))
    assert begun.wait(30)
    for version in (1, 2):
        publisher.publish(version, make_params(version))
    for pending in publisher._queue._pending.values():
        jax.block_until_ready(pending.arrays)
    held.set()
    publisher.close()
    assert saved == [0, 2]


def test_publish_returns_at_once_while_an_earlier_save_runs(publish, puller, monkeypatch):
    monkeypatch.setattr(checkpoint, "ArrayStorage", SlowStorage)
    publisher = publish(keep=5)
    publisher.publish(0, make_params(0))  # compiles
    puller.pull(exactly=0, timeout_secs=30)
    start = time.monotonic()
    publisher.publish(1, make_params(1))
    publisher.publish(2, make_params(2))
    assert time.monotonic() - start < 0.4
    publisher.publish(3, make_params(3))  # waits for its turn: no version is dropped
    assert [puller.pull(exactly=v, timeout_secs=30)[0] for v in range(4)] == [0, 1, 2, 3]


def test_only_where_it_may_does_a_newer_version_replace_one_that_waits(publish, monkeypatch):
    monkeypatch.setattr(checkpoint, "ArrayStorage", SlowStorage)
    publisher = publish(may_skip=True)
    for version in range(6):
        publisher.publish(version, make_params(version))
    publisher.close()
    versions = publisher._directory.versions()
    assert versions[-1] == 5
    assert len(versions) < 4


@pytest.mark.nightly
def test_a_version_that_can_be_saved_does_not_give_way_to_one_that_is_still_computed(publish):
    """This happens if the trainer has dispatched its next step before the last version is saved."""

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
    publisher._queue._timeout_secs = 30


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


@pytest.mark.gate
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
    abstract = [jax.ShapeDtypeStruct((200_000,), jnp.float32)] * 60
    with contextlib.closing(CheckpointPuller(directory, abstract)) as puller:
        version, params = puller.pull(timeout_secs=30)
        assert version == puller.newest() < 10_000
    assert {float(leaf.max()) for leaf in params} == {float(leaf.min()) for leaf in params}
    assert float(params[0][0]) == version
    CheckpointPublisher(directory).close()
    assert all(name == "readers" or TEMPORARY not in name for name in os.listdir(directory))
