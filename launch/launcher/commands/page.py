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
    of_flag = [f"--workdir={one}" for one in separated(flags.get("workdir", ""))]
    workdirs = []
    for named in (*of_flag, *arguments.words):
        workdirs.append(os.path.expanduser(named.removeprefix("--workdir=")))
        if not os.path.isdir(workdirs[-1]):
            raise ConfigError(f"{named} is not a directory.")
    if not workdirs:
        raise ConfigError("page takes the directories of one run or several: page RUN RUN ….")

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


def separated(names: str) -> list[str]:
    """Separates directories by commas; a comma in the name of one that exists is left alone."""
    parts = names.split(",") if names else []
    found = []
    while parts:
        joined = [",".join(parts[:count]) for count in range(len(parts), 0, -1)]
        there = (one for one in joined if os.path.isdir(os.path.expanduser(one)))
        found.append(next(there, parts[0]))
        parts = parts[found[-1].count(",") + 1 :]
    return found


def _say(address: str) -> None:
    print(f"{IS_AT} {address}\nEnd it with Ctrl-C; runs do not notice.", flush=True)
