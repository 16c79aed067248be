"""Starts runs from Python, each in its own processes, and reads their records."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from rl_sync.api.given import Changes, Config, config_file
from rl_sync.api.result import Result
from rl_sync.api.screen import Notebook, OutputScreen, Plain, Silent, in_notebook
from rl_sync.records.json_lines import JsonLinesReader
from rl_sync.records.resumption import RESUMED_AT
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.workdir import Workdir

_MISTAKE = 2
_LOOK_SECS = 0.2


class RunError(RuntimeError):
    """A run failed; the message gives the reason, and how to continue."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows: only the message."""
        return [f"{type(self).__name__}: {self}"]


class Stopped(KeyboardInterrupt):
    """A run was interrupted by Ctrl-C, or by a notebook's stop button, and has saved its state."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows."""
        return [str(self)]


class Event(NamedTuple):
    """A line of a run's metrics.

    Attributes:
      phase: `sft`, `rl` or `evaluation`.
      step: step within the phase; for an evaluation, the trainer step before it.
      values: metrics by name; docs/metrics.md describes them.
    """

    phase: str
    step: int
    values: dict[str, Any]


class Run:
    """A run in its own processes, which ends with this process.

    Its methods are for one thread; only `events` may be read by another thread.

    Attributes:
      workdir: work directory of the run.
    """

    def __init__(
        self,
        command: list[str],
        workdir: Path,
        screen: OutputScreen | None,
        folder: tempfile.TemporaryDirectory[str],
        variables: Mapping[str, str],
    ):
        """Starts a run.

        Args:
          command: command line of the launcher.
          workdir: work directory of the run.
          screen: shows the lines that the run prints; None to let the run draw on this terminal.
          folder: folder with the config; deleted with this object.
          variables: environment variables, in addition to this process's.
        """
        self.workdir = workdir
        self._folder = folder
        self._stopped = False
        self._config = Workdir(str(workdir)).config
        self._config_before = _written(self._config)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=None if screen is None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**(os.environ if screen is None else _plain_environment()), **variables},
            text=True,
            errors="backslashreplace",
            process_group=0,  # Ctrl-C reaches the run only through `wait`.
        )
        self._screen = screen
        self._complaints: list[str] = []
        assert self._process.stderr is not None
        self._readers = [_reading(self._process.stderr, self._complaints.append)]
        if screen is not None and self._process.stdout is not None:
            self._readers.append(_reading(self._process.stdout, screen.show))

    @property
    def is_running(self) -> bool:
        """True while the run is running."""
        return self._process.poll() is None

    @property
    def result(self) -> Result:
        """Records of the run so far."""
        return Result(self.workdir)

    def events(self) -> Iterator[Event]:
        """Yields the lines of metrics as they are written, until the run has ended.

        Raises:
          ConfigError: the config is invalid; the message says what to change.
          RunError: the run failed; all of its lines have been yielded then.
        """
        reader = JsonLinesReader(Workdir(str(self.workdir)).metrics)
        while True:
            running = self.is_running
            news = reader.read()
            for values in (line.record for line in news.lines):
                if RESUMED_AT not in values:
                    yield Event(values.pop("phase"), values.pop("step"), values)
            if not running:
                self._raise_failure()
                return
            if not news.size:
                time.sleep(_LOOK_SECS)

    def stop(self) -> None:
        """Asks the run to save a snapshot and end, as Ctrl-C does; `wait` then returns.

        It may be called more than once: the run is asked only once, since a second Ctrl-C would end
        it before it has saved.
        """
        if not self._stopped and self.is_running:
            self._process.send_signal(signal.SIGINT)
        self._stopped = True

    def wait(self) -> Result:
        """Waits for the end of the run. Ctrl-C stops the run, which then saves a snapshot.

        Raises:
          ConfigError: the config is invalid; the message says what to change.
          RunError: the run failed.
          KeyboardInterrupt: the run was interrupted here, and has ended.
        """
        interrupted = False
        while True:
            try:
                self._process.wait()
                break
            except KeyboardInterrupt:
                interrupted = True
                if self.is_running:
                    self._process.send_signal(signal.SIGINT)
        said = self._said()
        if self._screen is not None:
            self._screen.close()
        if interrupted:
            raise Stopped("\n".join(filter(None, [said, self._how_to_go_on()])))
        self._raise_failure()
        if said:
            print(said, file=sys.stderr)
        return self.result

    def wait_for_begin(self) -> None:
        """Waits until the config is accepted and the work directory is created.

        Raises:
          ConfigError: the config is invalid; the message says what to change.
          RunError: the run ended before its work directory was created.
          KeyboardInterrupt: the run was interrupted here, and has ended.
        """
        try:
            while self.is_running and _written(self._config) == self._config_before:
                time.sleep(_LOOK_SECS)
        except KeyboardInterrupt:
            self.stop()
            with contextlib.suppress(RunError):
                self.wait()
            raise Stopped("The run was stopped before it had begun.") from None
        if not self.is_running:
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises the error that a run has ended with, if there is one."""
        status, said = self._process.wait(), self._said()
        if status == _MISTAKE:
            raise ConfigError(said.removeprefix("error: "))
        if status and not (self._stopped and status >= 128):
            raise RunError(said or f"The launcher ended with exit status {status}.")

    def _said(self) -> str:
        """Returns the error output of a run that has ended."""
        for reader in self._readers:
            reader.join()
        return "\n".join(self._complaints).strip()

    def _how_to_go_on(self) -> str:
        return (
            f"The run in {self.workdir} was stopped. The same call with workdir="
            f"{str(self.workdir)!r} resumes from its newest snapshot."
        )


def start(
    config: Config,
    *,
    workdir: str | Path | None = None,
    changes: Changes | None = None,
    quiet: bool = False,
) -> Run:
    """Starts a run, and returns while it is running.

    It returns once the config is accepted, which takes a few seconds.

    Args:
      config: a config file, the name of a config of the package, a ConfigDict, or a dict of the
        settings that differ from the defaults.
      workdir: work directory of the run. A run that has begun there is resumed. None for the
        directory that the ConfigDict, the dict or the changes name; if they name none, for a new
        directory under `runs/`.
      changes: settings by their names on the command line, such as `{"sync.mode": "synchronous"}`.
      quiet: whether to show nothing.

    Raises:
      ConfigError: the config is invalid; the message says what to change.
      RunError: the run ended before it had begun.
    """
    return start_on(_screen(quiet), config, workdir=workdir, changes=changes)


def start_on(
    screen: OutputScreen | None,
    config: Config,
    *,
    workdir: str | Path | None = None,
    changes: Changes | None = None,
    variables: Mapping[str, str] | None = None,
) -> Run:
    """Starts a run whose lines are shown on a screen; see `start`.

    Args:
      screen: None to let the run draw on this terminal.
      variables: environment variables, in addition to this process's.
    """
    folder = tempfile.TemporaryDirectory(prefix="rl_sync-")
    named = config_file(config, changes or {}, Path(folder.name))
    directory = Path(workdir or _workdir_of(config, changes or {})).absolute()
    flags = [f"--config.{key}={_said(value)}" for key, value in (changes or {}).items()]
    command = [
        sys.executable,
        "-m",
        "rl_sync.launcher.processes.child",
        f"--config={named}",
        *flags,
    ]
    command.append(f"--config.workdir={directory}")
    run = Run(command, directory, screen, folder, variables or {})
    run.wait_for_begin()
    return run


def train(
    config: Config,
    *,
    workdir: str | Path | None = None,
    changes: Changes | None = None,
    quiet: bool = False,
) -> Result:
    """Trains from the beginning to the end.

    Args:
      config, workdir, changes, quiet: see `start`.

    Raises:
      ConfigError: the config is invalid; the message says what to change.
      RunError: the run failed.
    """
    return start(config, workdir=workdir, changes=changes, quiet=quiet).wait()


def _workdir_of(config: Config, changes: Changes) -> str:
    values: ConfigValues = {} if isinstance(config, str | Path) else config
    named = changes.get("workdir") or values.get("workdir")
    name = Path(config).stem if isinstance(config, str | Path) else values.get("name") or "run"
    return str(named or Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"))


def _said(value: Any) -> str:
    """Writes a value in the syntax of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain_environment() -> dict[str, str]:
    """Returns the environment without variables that make programs treat a pipe as a terminal.

    A notebook's kernel sets such variables; the run would redraw its lines four times a second.
    """
    forcing = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    return {name: value for name, value in os.environ.items() if name not in forcing}


def _screen(quiet: bool) -> OutputScreen | None:
    if quiet:
        return Silent()
    if in_notebook():
        return Notebook()
    own = sys.__stdout__
    return None if own is not None and sys.stdout is own and own.isatty() else Plain()


def _reading(stream: IO[str], take: Callable[[str], object]) -> threading.Thread:
    """Starts a thread that passes each line of a stream to a function."""

    def read() -> None:
        for line in stream:
            take(line.rstrip("\n"))

    thread = threading.Thread(target=read, name="launcher's lines", daemon=True)
    thread.start()
    return thread


def _written(path: Path) -> tuple[int, int] | None:
    """Returns values that change when a file is written again; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
