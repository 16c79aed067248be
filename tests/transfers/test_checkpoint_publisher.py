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

from rl_sync.transfers.checkpoint import CheckpointPublisher
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.deltas.retention import VersionRetention
from rl_sync.weights.deltas.version_files import VersionFiles
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError
from tests.transfers.small_weights import SLOW, make_params, publish_range, puller_of, slow_step

ROOT = Path(__file__).parents[2]
HALF = ".unfinished"
SKIPPING = QueueRules(may_skip=True)


@pytest.mark.gate
def test_weights_that_are_still_computed_are_published_without_a_wait(publish, puller):
    """The trainer goes on immediately; the time of the save begins when the values are there."""

    saves = {}
    publisher = publish(
        on_saved=lambda version, added, secs: saves.update({version: time.monotonic() - secs})
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


def test_a_step_that_donates_right_after_publish_changes_nothing(tmp_path):
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = {"w": jnp.zeros((300, 300)), "n": jnp.int32(0)}
    publisher = CheckpointPublisher(tmp_path, params, run="ours", chain="one", deltas=False)
    puller = puller_of(tmp_path, params)
    for version in range(4):
        publisher.publish(version, params)
        donated = params["w"]
        params = step(params)
        assert donated.is_deleted()
        pulled = puller.pull(exactly=version, timeout_secs=30)[1]
        assert float(pulled["w"].min()) == float(pulled["w"].max()) == version
    puller.close()
    publisher.close()


@pytest.mark.gate
def test_only_the_newest_are_kept_and_readers_meet_no_gap(publish, tmp_path):
    """Two readers pull without pause while versions are saved and deleted; no read fails."""
    publisher = publish()
    publisher.publish(0, make_params(0))
    stop, seen, errors = threading.Event(), [], []

    def read(name: str) -> None:
        with contextlib.closing(puller_of(tmp_path, reader=name)) as puller:
            while not stop.is_set():
                try:
                    version, params = puller.pull(timeout_secs=30)
                    seen.append((version, int(params["count"])))
                except Exception as error:
                    errors.append(error)

    readers = [threading.Thread(target=read, args=(f"r{i}",)) for i in range(2)]
    for reader in readers:
        reader.start()
    for last in range(1, 500):
        publisher.publish(last, make_params(last))
        if last >= 24 and len({*seen}) > 3:  # A fast disk saves many before the first is read.
            break
    publisher.close()
    stop.set()
    for reader in readers:
        reader.join(30)
    assert errors == []
    assert all(version == count for version, count in seen)
    assert len({*seen}) > 3
    assert versions_in(tmp_path)[-3:] == [last - 2, last - 1, last]
    assert len(versions_in(tmp_path)) <= 5, "a version for each reader at most"


def versions_in(directory: Path) -> list[int]:
    return [one.version for one in VersionFiles(directory).stored()]


@pytest.fixture
def slow(monkeypatch):
    """Lets each write take its time."""
    write = VersionFiles.write_parts

    def write_slowly(*arguments):
        time.sleep(0.5)
        return write(*arguments)

    monkeypatch.setattr(VersionFiles, "write_parts", write_slowly)


def test_of_the_computed_versions_that_wait_only_the_newest_is_saved(publish, monkeypatch):
    begun, held, saved = threading.Event(), threading.Event(), []

    write = VersionFiles.write_parts

    def write_later(*arguments):
        begun.set()
        assert held.wait(30)
        return write(*arguments)

    monkeypatch.setattr(VersionFiles, "write_parts", write_later)
    publisher = publish(rules=SKIPPING, on_saved=lambda version, *_: saved.append(version))
    publisher.publish(0, make_params(0))
    assert begun.wait(30)
    for version in (1, 2):
        publisher.publish(version, make_params(version))
    for pending in publisher._queue._pending.values():
        jax.block_until_ready(pending.arrays)
    held.set()
    publisher.close()
    assert saved == [0, 2]


@pytest.mark.usefixtures("slow")
def test_publish_returns_at_once_while_an_earlier_save_runs(publish, puller):
    publisher = publish(retention=VersionRetention(keep=5))
    publisher.publish(0, make_params(0))  # compiles
    puller.pull(exactly=0, timeout_secs=30)
    start = time.monotonic()
    publisher.publish(1, make_params(1))
    publisher.publish(2, make_params(2))
    assert time.monotonic() - start < 0.4
    publisher.publish(3, make_params(3))  # waits for its turn: no version is dropped
    assert [puller.pull(exactly=v, timeout_secs=30)[0] for v in range(4)] == [0, 1, 2, 3]


@pytest.mark.usefixtures("slow")
def test_only_where_it_may_does_a_newer_version_replace_one_that_waits(publish, tmp_path):
    publisher = publish(rules=SKIPPING)
    for version in range(6):
        publisher.publish(version, make_params(version))
    publisher.close()
    versions = versions_in(tmp_path)
    assert versions[-1] == 5
    assert len(versions) < 4


@pytest.mark.nightly
def test_a_version_that_can_be_saved_does_not_give_way_to_one_that_is_still_computed(publish):
    """This happens if the trainer has dispatched its next step before the last version is saved."""

    saved = []
    publisher = publish(rules=SKIPPING, on_saved=lambda version, *_: saved.append(version))
    params = jax.block_until_ready(slow_step(make_params(0), SLOW))
    for version in range(1, 4):
        publisher.publish(version, params := slow_step(params, SLOW))
    publisher.close()
    assert saved[-2:] == [2, 3]


@pytest.mark.usefixtures("slow")
def test_a_publisher_that_cannot_get_its_turn_says_what_is_in_the_way(publish):
    publisher = publish(rules=QueueRules(timeout_secs=0.1))
    publisher.publish(0, make_params(0))
    with pytest.raises(WeightsTimeoutError, match=r"to publish version \d: version 0 is still"):
        publish_range(publisher, 1, 4)
    publisher._queue._rules = QueueRules(timeout_secs=30)


def test_a_save_that_fails_is_an_error_of_the_next_publish(tmp_path, monkeypatch):
    publisher = CheckpointPublisher(tmp_path, make_params(0), run="ours", chain="one", deltas=False)

    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(VersionFiles, "write_parts", full)
    publisher.publish(0, make_params(0))
    with pytest.raises(WeightsTransferError, match="No space left on device"):
        publish_range(publisher, 1, 9)
    with pytest.raises(WeightsTransferError):
        publisher.close()


def test_saves_are_reported_with_the_time_they_took(publish):
    saved = []
    publisher = publish(on_saved=lambda version, _, secs: saved.append((version, secs > 0)))
    publisher.publish(0, make_params(0))
    publisher.publish(5, make_params(5))
    publisher.close()
    assert saved == [(0, True), (5, True)]


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
            if any(name.endswith(HALF) for name in names) and any(
                name.endswith(".json") for name in names
            ):
                break
    finally:
        saver.kill()
        saver.wait(30)
    if not list(directory.glob(f"*{HALF}")):  # It finished between the look and the kill.
        (directory / f"full_99999999.p0.safetensors.1234{HALF}").write_text("half")
    abstract = [jax.ShapeDtypeStruct((200_000,), jnp.float32)] * 60
    with contextlib.closing(puller_of(directory, abstract)) as puller:
        version, params = puller.pull(timeout_secs=30)
        assert version == puller.newest() < 10_000
    assert {float(leaf.max()) for leaf in params} == {float(leaf.min()) for leaf in params}
    assert float(params[0][0]) == version
    CheckpointPublisher(directory, abstract, run="ours", chain="next").close()
    assert os.listdir(directory) == ["readers"]
