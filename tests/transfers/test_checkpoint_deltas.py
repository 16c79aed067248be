"""Checkpoint transfer by differences: files that lead to every version, whatever is damaged."""

from __future__ import annotations

import contextlib
import errno
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.deltas import history_publisher
from rl_sync.weights.deltas.retention import VersionRetention
from rl_sync.weights.deltas.version_files import VersionFiles, VersionFilesError
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError
from tests.transfers.changing_weights import abstract_on, assert_same_bits, placed, weights
from tests.weights.deltas.outside_reader import read_all

ONE = ((0,), ())
ROWS, COLUMNS = ((0, 1), ("x",)), ((2, 3), (None, "x"))


@contextlib.contextmanager
def publishing(directory, mesh=ONE, target=ONE, run="ours", chain="first", **options):
    source = abstract_on(*mesh)
    saved = threading.Condition()
    there = []

    def on_saved(version, added, secs):
        with saved:
            there.append(version)
            saved.notify_all()

    publisher = CheckpointPublisher(
        directory,
        source,
        run=run,
        chain=chain,
        expected=mesh_regions(abstract_on(*target)),
        on_saved=on_saved,
        **options,
    )

    def publish(*versions):
        for version in versions:
            publisher.publish(version, placed(version, source))
            with saved:
                assert saved.wait_for(lambda version=version: version in there, 30)

    try:
        yield publish
    finally:
        publisher.close()


@contextlib.contextmanager
def pulling(directory, mesh=ONE, run="ours", reader="explorer1", **options):
    puller = CheckpointPuller(directory, abstract_on(*mesh), run=run, reader=reader, **options)
    try:
        yield puller
    finally:
        puller.close()


def pulled(puller, version):
    number, params = puller.pull(exactly=version, timeout_secs=20)
    assert number == version
    assert_same_bits(params, version)
    return puller.stats


@pytest.mark.parametrize("mesh", [ONE, COLUMNS], ids=["one device", "columns"])
def test_files_are_the_same_bytes_whether_the_host_or_the_devices_compare(
    mesh, tmp_path, monkeypatch
):
    files = []
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr(history_publisher, "platform", lambda platform=platform: platform)
        directory = tmp_path / platform
        with publishing(directory, mesh, retention=VersionRetention(full_every=2)) as publish:
            publish(0, 1, 2, 3)
            found = {path.name: path.read_bytes() for path in directory.glob("*.safetensors")}
        files.append(found)
    assert {"full_00000002.p0.safetensors", "delta_00000003.p0.safetensors"} <= files[0].keys()
    assert files[0] == files[1]


def manifests(directory):
    return sorted(path.stem for path in directory.glob("*.json"))


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.gate
@pytest.mark.parametrize(("source", "target"), [(ONE, ONE), (ROWS, COLUMNS), (ONE, COLUMNS)])
def test_versions_arrive_to_the_bit_first_whole_then_as_changes(tmp_path, source, target):
    with publishing(tmp_path, source, target) as publish, pulling(tmp_path, target) as puller:
        publish(0)
        assert pulled(puller, 0).full
        for version in (1, 2):
            publish(version)
            stats = pulled(puller, version)
            assert not stats.full
            assert stats.received_bytes < stats.dense_bytes / 20
        assert puller.newest() == 2


def test_a_store_may_have_arguments_of_its_own_between_those_of_others(tmp_path, monkeypatch):
    """The file system of S3 takes a version of the file where others take the first byte."""
    whole = LocalFileSystem.cat_file

    def like_s3(self, path, version_id=None, start=None, end=None):
        assert version_id is None
        return whole(self, path, start=start, end=end)

    monkeypatch.setattr(LocalFileSystem, "cat_file", like_s3)
    with publishing(tmp_path) as publish, pulling(tmp_path) as puller:
        publish(0)
        assert pulled(puller, 0).full


def test_a_late_reader_gets_the_newest_full_copy_and_what_follows_it(tmp_path):
    with publishing(tmp_path, retention=VersionRetention(full_every=3, keep=4)) as publish:
        publish(*range(6))
        full = [name for name in manifests(tmp_path) if name.startswith("full")]
        assert full == ["full_00000000", "full_00000003"]
        with pulling(tmp_path) as late:
            assert pulled(late, 5).full
        with pulling(tmp_path, reader="other") as exact:
            pulled(exact, 2)
            assert pulled(exact, 4).full is False


def test_what_no_reader_needs_is_deleted_and_a_slow_reader_keeps_what_it_needs(tmp_path):
    retention = VersionRetention(full_every=2, keep=2)
    with publishing(tmp_path, retention=retention) as publish, pulling(tmp_path) as slow:
        publish(0)
        pulled(slow, 0)
        publish(*range(1, 9))
        assert "delta_00000001" in manifests(tmp_path)
        assert not pulled(slow, 8).full
        publish(9, 10, 11)
        assert min(int(name[-8:]) for name in manifests(tmp_path)) >= 8
        pulled(slow, 11)


def test_a_damaged_difference_is_refused_and_a_full_copy_is_written_for_it(tmp_path):
    retention = VersionRetention(full_every=100)
    with publishing(tmp_path, retention=retention) as publish, pulling(tmp_path) as puller:
        publish(0)
        pulled(puller, 0)
        publish(1)
        damage(tmp_path / "delta_00000001.p0.safetensors")
        stats = pulled(puller, 1)
        assert (stats.full, stats.refused) == (True, True)
        assert "full_00000001" in manifests(tmp_path)
        publish(2)
        assert not pulled(puller, 2).full


@pytest.mark.parametrize("reads", [{}, {"deltas": False, "check_digest": False}])
def test_a_damaged_full_copy_is_written_anew(tmp_path, reads):
    """The trainer need not publish another version: in synchronous mode it could not."""
    deltas = reads.get("deltas", True)
    with publishing(tmp_path, deltas=deltas) as publish, pulling(tmp_path, **reads) as puller:
        publish(0)
        damage(tmp_path / "full_00000000.p0.safetensors")
        stats = pulled(puller, 0)
        assert (stats.full, stats.refused) == (True, True)
        publish(1)
        assert pulled(puller, 1).full is not deltas


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_full_disk_leaves_a_version_out_or_ends_with_one_line(tmp_path, monkeypatch, may_skip):
    write = VersionFiles._write
    full, tried = threading.Event(), threading.Event()

    def sometimes_full(self, name, content):
        if full.is_set() and name.startswith("delta_00000001"):
            tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(VersionFiles, "_write", sometimes_full)
    source = abstract_on(*ONE)
    rules = QueueRules(may_skip=may_skip)
    publisher = CheckpointPublisher(tmp_path, source, run="ours", chain="a", rules=rules)
    with pulling(tmp_path) as puller:
        publisher.publish(0, placed(0, source))
        pulled(puller, 0)
        full.set()
        publisher.publish(1, placed(1, source))
        assert tried.wait(20)
        if may_skip:
            publisher.publish(2, placed(2, source))
            assert pulled(puller, 2).full
            assert not list(tmp_path.glob("*00000001*"))
            publisher.close()
        else:
            with pytest.raises(WeightsTransferError, match=r"(?s)1 could not.*No space left"):
                publisher.close()


def test_another_runs_versions_are_not_read_and_named_when_nothing_else_comes(tmp_path):
    with publishing(tmp_path, run="theirs") as publish:
        publish(0)
        with pulling(tmp_path) as puller:
            assert puller.newest() == -1
            with pytest.raises(WeightsTimeoutError, match="belong to another run"):
                puller.pull(exactly=0, timeout_secs=0.2)


def test_a_resumed_trainer_begins_a_new_chain_with_a_full_copy(tmp_path):
    with pulling(tmp_path) as puller:
        with publishing(tmp_path) as publish:
            publish(0, 1, 2)
            pulled(puller, 2)
        with publishing(tmp_path, chain="second") as publish:
            publish(1)
            assert manifests(tmp_path) == ["full_00000001"]
            assert pulled(puller, 1).full
            publish(2)
            assert not pulled(puller, 2).full


def test_a_reader_of_another_dtype_or_model_is_refused(tmp_path):
    with publishing(tmp_path) as publish:
        publish(0)
        abstract = abstract_on(*ONE)
        one = abstract["scale"]
        other = {**abstract, "scale": jax.ShapeDtypeStruct(one.shape, jnp.float32)}
        with pytest.raises(ValueError, match=r"bfloat16\[33\] where .* float32\[33\]"):
            CheckpointPuller(tmp_path, other, run="ours").pull(exactly=0, timeout_secs=1)
        fewer = {name: leaf for name, leaf in abstract.items() if name != "head"}
        with pytest.raises(ValueError, match=r"head of float32.*has .*layers"):
            CheckpointPuller(tmp_path, fewer, run="ours").pull(exactly=0, timeout_secs=1)


def test_manifests_of_another_format_are_refused_with_both_formats(tmp_path):
    with publishing(tmp_path) as publish:
        publish(0)
        path = tmp_path / "full_00000000.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, "format": 2}))
        with pytest.raises(VersionFilesError, match=r"format 2 .* it knows format 1"):
            VersionFiles(tmp_path).stored()


def test_a_reader_that_may_only_read_follows_too(tmp_path, monkeypatch):
    with publishing(tmp_path) as publish, pulling(tmp_path, run=None) as puller:

        def refused(*_):
            raise PermissionError("read-only")

        monkeypatch.setattr(VersionFiles, "_mark", refused)
        publish(0)
        pulled(puller, 0)
        publish(1)
        assert not pulled(puller, 1).full


def test_a_follower_reads_whole_versions_too(tmp_path):
    with publishing(tmp_path, deltas=False) as publish, pulling(tmp_path, run=None) as follower:
        for version in range(4):
            publish(version)
            assert pulled(follower, version).full
        assert [name[:4] for name in manifests(tmp_path)] == ["full"] * 3


@pytest.mark.parametrize("source", [ONE, ROWS])
def test_a_reader_that_knows_only_the_documentation_gets_the_same_bits(
    tmp_path, source, monkeypatch
):
    monkeypatch.setattr(VersionFiles, "delete", lambda *_: None)
    retention = VersionRetention(full_every=3, keep=9)
    with publishing(tmp_path, source, COLUMNS, retention=retention) as publish:
        publish(*range(6))
    versions, _ = read_all(tmp_path)
    assert sorted(versions) == list(range(6))
    for version, arrays in versions.items():
        expected = {"layers/up": weights(version)["layers"]["up"], **weights(version)}
        for name, bits in arrays.items():
            assert bits.tobytes() == np.asarray(expected[name]).tobytes(), (version, name)


@pytest.mark.parametrize("dtype", [np.uint8, jnp.bfloat16, np.float32])
def test_the_documentation_tells_every_encoding(tmp_path, dtype):
    rng = np.random.default_rng(3)
    size = 700_000  # Two blocks of half a megabyte, or more.
    bits = rng.integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8)
    versions = [bits]
    for share in (0.0, 0.001, 0.9, 1.0):
        new = versions[-1].copy()
        chosen = rng.random(new.size) < share
        new[chosen] ^= 1 if share < 1 else rng.integers(1, 256, chosen.sum(), np.uint8)
        versions.append(new)
    params = [{"w": jnp.asarray(one.view(dtype))} for one in versions]
    saved = threading.Condition()
    there = []

    def on_saved(version, added, secs):
        with saved:
            there.append(version)
            saved.notify_all()

    publisher = CheckpointPublisher(
        tmp_path,
        params[0],
        run="ours",
        chain="one",
        retention=VersionRetention(keep=9, full_every=99),
        on_saved=on_saved,
    )
    for version, one in enumerate(params):
        publisher.publish(version, one)
        with saved:
            assert saved.wait_for(lambda version=version: version in there, 30)
    publisher.close()
    found, encodings = read_all(tmp_path)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert encodings == {0, 1, 2, 3}
    for version, arrays in found.items():
        assert arrays["w"].tobytes() == versions[version].tobytes()
