"""The page beside a run, in a process that ends with the run, but cannot end the run."""

from __future__ import annotations

import os
import sys

from rl_sync.launcher.commands.page import IS_AT
from rl_sync.launcher.processes.supervisor import RoleProcess
from rl_sync.workdir import Workdir

NAME = "page"


class PageBeside:
    """Serves the page of a run while it goes on; a context manager that ends the page.

    Args:
      workdir: the run's work directory.
      port: the port on the loopback address; 0 for any free one.
    """

    def __init__(self, workdir: Workdir, port: int):
        self._log = workdir.log(NAME)
        self._start = self._log.stat().st_size if self._log.exists() else 0
        directory = f"--workdir={os.fspath(workdir)}"
        command = [
            sys.executable,
            "-m",
            "rl_sync.launcher.processes.child",
            NAME,
            directory,
            f"--port={port}",
        ]
        self._process = RoleProcess.start(NAME, command, self._log, {"JAX_PLATFORMS": "cpu"})
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
        found = next((line for line in said if line.startswith(IS_AT)), None)
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
