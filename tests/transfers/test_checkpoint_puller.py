"""The reading end: every exact version, to the bit, and none lost while it is read."""

from __future__ import annotations

import contextlib
import os
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.weights.deltas.retention import VersionRetention
from rl_sync.weights.deltas.version_files import VersionFiles
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError
from tests.transfers.small_weights import make_params, publish_range, puller_of


def test_what_is_pulled_is_what_was_published_to_the_bit_and_where_it_was_asked_for(
    publish, tmp_path
):
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec())
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make_params(0)
    )
    publish().publish(3, make_params(3))
    with contextlib.closing(puller_of(tmp_path, abstract)) as puller:
        version, params = puller.pull(timeout_secs=30)
        assert version == puller.newest() == 3
    assert digest(params) == digest(make_params(3))
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(params))


def test_exact_pulls_get_each_of_eight_versions_while_the_trainer_runs_ahead(publish, puller):
    publisher = publish(retention=VersionRetention(keep=8))
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


def test_a_version_that_a_reader_reads_outlives_its_turn(publish, puller, tmp_path):
    files = VersionFiles(tmp_path)
    publisher = publish()
    publisher.publish(0, make_params(0))
    puller.pull(exactly=0, timeout_secs=30)
    assert os.listdir(tmp_path / "readers") == []
    files.mark("slow", 0)
    publish_range(publisher, 1, 6)
    publisher.close()
    assert [one.version for one in files.stored()] == [0, 3, 4, 5]


def test_a_version_is_marked_while_it_is_read(publish, puller, tmp_path, monkeypatch):
    publish().publish(7, make_params(7))
    marks = []
    contents = VersionFiles.contents

    def look(files, *arguments):
        marks.append(files.held(600))
        return contents(files, *arguments)

    monkeypatch.setattr(VersionFiles, "contents", look)
    puller.pull(exactly=7, timeout_secs=30)
    assert marks == [{"e1": 7}]
    assert VersionFiles(tmp_path).held(600) == {}


def test_a_read_that_fails_is_tried_again_with_a_newer_version(
    publish, puller, tmp_path, monkeypatch
):
    publisher = publish()
    publisher.publish(1, make_params(1))
    assert puller.pull(exactly=1, timeout_secs=30)[0] == 1
    contents = VersionFiles.contents

    def vanish(files, file, parts):
        if "00000001" in file.name:
            (one,) = files.stored()
            files.delete(one)
            publisher.publish(2, make_params(2))
        return contents(files, file, parts)

    monkeypatch.setattr(VersionFiles, "contents", vanish)
    version, params = puller.pull(timeout_secs=30)
    assert (version, int(params["count"])) == (2, 2)


def test_an_exact_read_that_fails_once_is_tried_again_with_the_same_version(
    publish, puller, monkeypatch
):
    publish().publish(1, make_params(1))
    contents, calls = VersionFiles.contents, []

    def fail_once(files, file, parts):
        calls.append(file.name)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return contents(files, file, parts)

    monkeypatch.setattr(VersionFiles, "contents", fail_once)
    assert puller.pull(exactly=1, timeout_secs=30)[0] == 1
    assert len(calls) == 2


def test_weights_that_changed_on_the_way_are_refused_with_both_digests(
    publish, puller, tmp_path, monkeypatch
):
    publish().publish(1, make_params(1))
    contents = VersionFiles.contents

    def flip(files, file, parts):
        found = contents(files, file, parts)
        (count,) = [number for number, name in parts.items() if name == "count"]
        found[count][0] ^= 1
        return found

    monkeypatch.setattr(VersionFiles, "contents", flip)
    with pytest.raises(WeightsMismatchError) as caught:
        puller.pull(exactly=1, timeout_secs=30)
    assert caught.value.version == 1
    assert caught.value.published == digest(make_params(1))
    assert caught.value.received != caught.value.published
    trusting = puller_of(tmp_path, check_digest=False)
    version, params = trusting.pull(exactly=1, timeout_secs=30)
    assert version == 1
    assert digest(params) != caught.value.published


def test_weights_of_another_model_are_refused_by_name(publish, tmp_path):
    publish().publish(0, make_params(0))
    with (
        contextlib.closing(puller_of(tmp_path, make_params(0, size=41))) as puller,
        pytest.raises(ValueError, match=r"float32\[40, 5\] where .*w\.in.*float32\[41, 5\]"),
    ):
        puller.pull(timeout_secs=30)
