"""Folders of snapshots in memory belong to one run each."""

import pytest

from rl_sync.checkpoints.memory_tier import memory_folder, remove_memory_folder
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.workdir import Workdir


def test_a_run_finds_its_folder_again_and_no_other_run_does(tmp_path):
    one, other = (Workdir(tmp_path / name) for name in ("one", "other"))
    for workdir in (one, other):
        (tmp_path / workdir.path.name).mkdir()
    found = memory_folder(one, tmp_path)
    assert found == memory_folder(one, tmp_path)
    assert found.parent == tmp_path
    assert memory_folder(other, tmp_path) != found


def test_a_run_that_begins_anew_in_the_same_place_has_another_folder(tmp_path):
    """The attempt before may have left snapshots of a run with other settings."""
    workdir = Workdir(tmp_path)
    before = memory_folder(workdir, tmp_path)
    assert workdir.memory in workdir.of_attempt
    workdir.memory.unlink()
    assert memory_folder(workdir, tmp_path) != before


def test_a_folder_is_removed_once_and_nothing_else_is(tmp_path):
    workdir = Workdir(tmp_path)
    remove_memory_folder(workdir)
    folder = memory_folder(workdir, tmp_path)
    (folder / "snapshot").mkdir(parents=True)
    remove_memory_folder(workdir)
    assert not folder.exists()
    assert not workdir.memory.exists()
    kept = tmp_path / "mine"
    kept.mkdir()
    workdir.memory.write_text(f"{kept}\n")
    remove_memory_folder(workdir)
    assert kept.exists()


def test_another_place_for_snapshots_takes_effect_and_the_former_is_cleared(tmp_path):
    workdir, elsewhere = Workdir(tmp_path), tmp_path / "elsewhere"
    before = memory_folder(workdir, tmp_path)
    before.mkdir()
    elsewhere.mkdir()
    assert memory_folder(workdir, elsewhere).parent == elsewhere
    assert not before.exists()


def test_a_place_that_is_not_there_is_refused_and_not_made(tmp_path):
    """It would be on a disk, which a run is not meant to fill."""
    missing = tmp_path / "shmm"
    with pytest.raises(RunEndedError, match="shmm is no folder of the trainer's machine"):
        memory_folder(Workdir(tmp_path), missing)
    assert not missing.exists()
