"""The reading end: every exact version, to the bit, and none lost while it is read."""

from __future__ import annotations

import contextlib
import os
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.transfers.checkpoint import CheckpointPuller
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError
from rl_sync.weights.storage import ArrayStorage
from rl_sync.weights.versions import VersionDirectory
from tests.transfers.small_weights import make_params, publish_range


def test_what_is_pulled_is_what_was_published_to_the_bit_and_where_it_was_asked_for(
    publish, tmp_path
):
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec())
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_params(0)
    )
    publish().publish(3, make_params(3))
    with contextlib.closing(CheckpointPuller(tmp_path, abstract)) as puller:
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

    def vanish(storage, path, abstract):
        if path.name.endswith("1"):
            VersionDirectory(tmp_path).delete(1)
            publisher.publish(2, make_params(2))
        return read(storage, path, abstract)

    monkeypatch.setattr(ArrayStorage, "read", vanish)
    version, params = puller.pull(timeout_secs=30)
    assert (version, int(params["count"])) == (2, 2)


def test_an_exact_read_that_fails_once_is_tried_again_with_the_same_version(
    publish, puller, monkeypatch
):
    publish().publish(1, make_params(1))
    read, calls = ArrayStorage.read, []

    def fail_once(storage, path, abstract):
        calls.append(path)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return read(storage, path, abstract)

    monkeypatch.setattr(ArrayStorage, "read", fail_once)
    assert puller.pull(exactly=1, timeout_secs=30)[0] == 1
    assert len(calls) == 2


def test_weights_that_changed_on_the_way_are_refused_with_both_digests(
    publish, puller, tmp_path, monkeypatch
):
    publish().publish(1, make_params(1))
    read = ArrayStorage.read

    def flip(storage, path, abstract):
        named = read(storage, path, abstract)
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


def test_versions_of_an_older_layout_are_refused_in_one_line(puller, tmp_path):
    """Earlier releases stored small arrays of one shape as one."""
    directory = VersionDirectory(tmp_path)
    with contextlib.closing(ArrayStorage("older")) as storage:
        stack = {"params/a+1.0badcafe": np.zeros((2, 3), np.float32)}
        storage.write(directory.path(4), {**stack, "digest": np.zeros(2, np.uint32)})
    directory.announce(4)
    with pytest.raises(ValueError, match="was written for another model or version: it") as caught:
        puller.pull(timeout_secs=30)
    assert "\n" not in str(caught.value)
