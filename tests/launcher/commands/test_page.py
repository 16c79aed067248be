"""The command `page`, and the page beside a run."""

import socket
import time
import urllib.request

import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.commands import page
from rl_sync.launcher.commands.page import PageBeside
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.page.small_run import write_run


def test_mistakes_of_the_command_line_are_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, said in (
            ([f"--workdir={tmp_path},{tmp_path}/none"], "none is not a directory"),
            ([f"--workdir={tmp_path}", f"--port={port}"], "give another --host or --port"),
            ([str(tmp_path), f"{tmp_path}/lr=1,seed=2"], "lr=1,seed=2 is not a directory"),
            ([], "page takes the directories of one run or several"),
        ):
            with pytest.raises(ConfigError, match=said):
                page.execute(command_line.parse(["page", *flags]))


def test_a_comma_in_the_name_of_a_directory_does_not_separate(tmp_path, monkeypatch):
    """As `sweep` names its runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "lr=0.1,seed=2", "lr=0.1"):
        (tmp_path / name).mkdir()
    for names, expected in (
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("lr=0.1,seed=2", ["lr=0.1,seed=2"]),
        ("a,lr=0.1,seed=2,b", ["a", "lr=0.1,seed=2", "b"]),
        ("lr=0.1,seed=3", ["lr=0.1", "seed=3"]),
        ("a,", ["a", ""]),
        ("", []),
    ):
        assert page.separated(names) == expected, names


@pytest.fixture
def workdir(tmp_path):
    return Workdir(write_run(tmp_path / "run"))


def _news(beside):
    deadline = time.monotonic() + 60
    while (news := beside.news()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return news


@pytest.mark.nightly
def test_a_page_beside_a_run_tells_its_address_once_and_ends_with_the_run(workdir):
    with PageBeside(workdir, 0) as beside:
        said = _news(beside)
        assert said.startswith("The page is at http://127.0.0.1:")
        address = said.removeprefix("The page is at ")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"trainer step" in answer.read()
        assert beside.news() is None
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=5)
    with PageBeside(workdir, 0) as beside:
        assert _news(beside) != said, "the log of a run that goes on has the old address, too"


@pytest.mark.nightly
def test_a_page_that_cannot_be_served_is_told_of_once(workdir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with PageBeside(workdir, port) as beside:
            said = _news(beside)
            assert said.startswith("The page has ended, and the run goes on without it: Nothing")
            assert f"port {port}" in said
            assert beside.news() is None
