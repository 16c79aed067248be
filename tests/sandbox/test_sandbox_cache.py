"""The folder of facts, where other users have been before."""

import os
import tempfile

import pytest

from rl_sync.sandbox.sandbox_cache import cache_folder

NAME = f"rl_sync-sandbox-{os.getuid()}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def occupy_as_another_user(folder):
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    folder.mkdir()
    os.chown(folder, 65534, 65534)


def test_it_is_the_same_folder_each_time(place):
    assert cache_folder() == cache_folder() == place / NAME
    assert (place / NAME).stat().st_mode & 0o777 == 0o700


def test_another_users_folder_of_its_name_does_not_block_it(place):
    occupy_as_another_user(place / NAME)
    occupy_as_another_user(place / f"{NAME}-0000")
    folder = cache_folder()
    assert folder.stat().st_uid == os.getuid()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder
    assert len(list(place.iterdir())) == 3


@pytest.mark.parametrize("kind", ["link", "file", "open folder", "broken link"])
def test_what_is_no_folder_of_this_user_alone_is_not_used(place, kind):
    taken, elsewhere = place / NAME, place / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    match kind:
        case "link":
            taken.symlink_to(elsewhere)
        case "broken link":
            taken.symlink_to(place / "nowhere")
        case "file":
            taken.write_text("")
        case "open folder":
            taken.mkdir()
            taken.chmod(0o777)
    folder = cache_folder()
    assert folder not in (taken, elsewhere)
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert cache_folder() == folder


def test_judging_goes_on_where_another_user_took_the_name(place):
    from rl_sync.rewards.code import Code
    from rl_sync.rewards.judgement import Completion
    from rl_sync.sandbox import sandbox_choice

    occupy_as_another_user(place / NAME)
    sandbox_choice._choose.cache_clear()
    row = {"tests": [{"input": "", "output": "1"}]}
    assert Code()(row, Completion("print(1)")).score == 1.0
    sandbox_choice._choose.cache_clear()
