"""`page`: serves a page about runs, from their files."""

from __future__ import annotations

import os

from rl_sync.launcher.command import Arguments
from rl_sync.settings.records import ConfigError

IS_AT = "The page is at"


def execute(arguments: Arguments) -> int:
    """Serves the page until it is interrupted.

    Raises:
      ConfigError: a flag is invalid, or the address cannot be used.
    """
    flags = arguments.flags
    workdirs = [os.path.expanduser(one) for one in flags["workdir"].split(",")]
    for workdir in workdirs:
        if not os.path.isdir(workdir):
            raise ConfigError(f"--workdir={workdir} is not a directory.")

    from rl_sync.page import page_server

    host, port = flags.get("host") or page_server.LOOPBACK, flags.get("port", 0)
    try:
        page_server.serve(workdirs, host, port, say=_say)
    except OSError as error:
        raise ConfigError(
            f"Nothing can be served at {host}, port {port} ({error.strerror or error}): give"
            " another --host or --port."
        ) from error
    return 0


def _say(address: str) -> None:
    print(f"{IS_AT} {address}\nEnd it with Ctrl-C; runs do not notice.", flush=True)
