import socket

import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.commands import page
from rl_sync.settings.records import ConfigError


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
