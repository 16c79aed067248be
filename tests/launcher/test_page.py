import socket

import pytest

from rl_sync.launcher import page
from rl_sync.settings.records import ConfigError


def test_mistakes_of_the_command_line_are_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, said in (
            ({"workdir": f"{tmp_path},{tmp_path}/none"}, "none is not a directory"),
            ({"workdir": str(tmp_path), "port": port}, "give another --host or --port"),
        ):
            with pytest.raises(ConfigError, match=said):
                page.serve(flags)
