"""`page`: serves a page about runs, from their files; also in a process beside a run."""

from __future__ import annotations

import os
import sys

from rl_sync.launcher.command import Arguments
from rl_sync.launcher.processes.supervisor import RoleProcess
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir

_IS_AT = "The page is at"
_NAME = "page"


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
    print(f"{_IS_AT} {address}\nEnd it with Ctrl-C; runs do not notice.", flush=True)


class PageBeside:
    """Serves the page of a run while it goes on; a context manager that ends the page.

    The page is a process that ends with the run, but cannot end the run.

    Args:
      workdir: the run's work directory.
      port: the port on the loopback address; 0 for any free one.
    """

    def __init__(self, workdir: Workdir, port: int):
        self._log = workdir.log(_NAME)
        self._start = self._log.stat().st_size if self._log.exists() else 0
        directory = f"--workdir={os.fspath(workdir)}"
        command = [
            sys.executable,
            "-m",
            "rl_sync.launcher.processes.child",
            _NAME,
            directory,
            f"--port={port}",
        ]
        self._process = RoleProcess.start(_NAME, command, self._log, {"JAX_PLATFORMS": "cpu"})
        self._is_over = self._is_up = False

    def news(self) -> str | None:
        """Returns a line once the page is up, and once it has ended; None at all other calls."""
        status = self._process.poll()
        if self._is_over or (status is None and self._is_up):
            return None
        said = self._said()
        if status is not None:
            self._is_over = True
            why = f": {said[-1].removeprefix('error: ')}" if said else "."
            return f"The page has ended, and the run goes on without it{why}"
        found = next((line for line in said if line.startswith(_IS_AT)), None)
        self._is_up = found is not None
        return found

    def close(self) -> None:
        """Ends the page."""
        self._process.kill()  # It only reads, so it loses nothing.

    def __enter__(self) -> PageBeside:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _said(self) -> list[str]:
        """Returns the whole lines that the process has printed."""
        with open(self._log, "rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        return [line.strip() for line in lines if line.endswith("\n") and line.strip()]
