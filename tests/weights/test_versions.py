"""The list of versions, the same on a file system and in a bucket."""

from __future__ import annotations

import itertools
import os
import time

import fsspec
import pytest

from rl_sync.weights.versions import VersionDirectory
from tests.weights import bucket

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def served():
    with bucket.serving() as variables:
        yield variables


@pytest.fixture(params=["on a file system", "in a bucket"])
def directory(request, tmp_path, monkeypatch) -> VersionDirectory:
    if request.param == "on a file system":
        return VersionDirectory(tmp_path)
    for name, value in request.getfixturevalue("served").items():
        monkeypatch.setenv(name, value)
    return VersionDirectory(f"{bucket.URL}/{next(_NUMBERS)}")


def write(directory: VersionDirectory, *versions: int) -> None:
    for version in versions:
        file = directory.path(version) / "arrays" / "w"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(version))


def there(directory: VersionDirectory, version: int) -> bool:
    return (directory.path(version) / "arrays" / "w").exists()


def publish(directory: VersionDirectory, *versions: int) -> None:
    write(directory, *versions)
    for version in versions:
        directory.announce(version)


def test_a_version_is_there_when_it_was_announced(directory):
    assert directory.versions() == []
    write(directory, 3)
    assert directory.versions() == []
    assert not directory.has(3)
    directory.announce(3)
    publish(directory, 123456789, 0)
    assert directory.versions() == [0, 3, 123456789]
    assert directory.has(3)
    assert (directory.path(3) / "arrays" / "w").read_text() == "3"


def test_what_another_process_writes_is_seen_at_once(directory):
    fsspec.get_filesystem_class("gs").clear_instance_cache()  # As in another process.
    other = VersionDirectory(directory.root)
    for version in range(3):
        assert not other.has(version)
        assert other.versions() == list(range(version))
        publish(directory, version)
        assert other.has(version)
    directory.delete(1)
    assert other.versions() == [0, 2]


def test_the_newest_stay_and_those_that_are_held(directory):
    publish(directory, *range(5))
    with directory.held("slow", 0):
        assert directory.held_versions(600) == {0}
        directory.retain(2, 600)
        assert directory.versions() == [0, 3, 4]
        assert [there(directory, version) for version in range(5)] == [1, 0, 0, 1, 1]
    assert directory.held_versions(600) == set()
    directory.retain(2, 600)
    assert directory.versions() == [3, 4]


def test_a_hold_does_not_last_for_ever(directory):
    publish(directory, 0, 1)
    with directory.held("dead", 0):
        time.sleep(0.02)
        assert directory.held_versions(0.01) == set()
        directory.retain(1, 0.01)
    assert directory.versions() == [1]


def test_two_holds_of_one_reader_are_two(directory):
    publish(directory, 0, 1)
    with directory.held("r", 0):
        with directory.held("r", 1):
            assert directory.held_versions(600) == {0, 1}
        assert directory.held_versions(600) == {0}


def test_what_is_not_there_cannot_be_held(directory):
    write(directory, 0)
    with pytest.raises(FileNotFoundError, match="Version 0 is not in"), directory.held("r", 0):
        pass
    assert directory.held_versions(600) == set()


def test_a_hold_that_comes_in_the_middle_of_a_deletion_undoes_it(directory, monkeypatch):
    publish(directory, *range(4))
    withdraw = directory._withdraw
    other = VersionDirectory(directory.root)
    late = other.held("late", 0)

    def hold_and_withdraw(version: int) -> None:
        late.__enter__()
        withdraw(version)

    monkeypatch.setattr(directory, "_withdraw", hold_and_withdraw)
    directory.retain(3, 600)
    assert directory.versions() == [0, 1, 2, 3]
    assert there(directory, 0)
    late.__exit__(None, None, None)


def test_what_was_left_half_written_is_swept_away_and_nothing_else(directory):
    publish(directory, 1)
    write(directory, 0, 2)
    half = directory.root / f"{directory.path(4).name}.orbax-checkpoint-tmp-7" / "w"
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_text("half")
    mine = directory.root / "notes" / "mine"
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    directory.sweep()
    assert [there(directory, version) for version in range(3)] == [False, True, False]
    assert not half.exists()
    assert mine.exists()
    with directory.held("r", 1):
        directory.clear()
        assert directory.held_versions(600) == set()
        assert directory.versions() == []
        assert not there(directory, 1)
    assert mine.exists()


@pytest.mark.gate
def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = VersionDirectory("weights")
    monkeypatch.chdir(os.sep)
    publish(directory, 0)
    assert VersionDirectory(tmp_path / "weights").versions() == [0]
