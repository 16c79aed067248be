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
        ):
            with pytest.raises(ConfigError, match=said):
                page.execute(command_line.parse(["page", *flags]))
