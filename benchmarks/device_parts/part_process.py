"""A part in a process of its own, with a deadline: neither a hang nor a crash of it stops others.

The part's process writes a line of JSON for each finding to its standard output, and one for its
end. Its standard input stays open as long as the asking process lives: when it ends, the part's
process ends itself and all processes that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from device_parts.finding import Finding, PartOptions

DONE = "done"
_LONGEST_REASON = 300
_POLL_SECS = 0.2
_LEAVE_SECS, _LOOK_SECS = 10.0, 0.05


class PartProcess:
    """A part that runs.

    Args:
      command: command line of the process.
      log: file for everything else that it writes.
      environment: environment of the process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("w") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, secs: float, on_finding: Callable[[Finding], None]) -> str:
        """Waits for the part; returns `done`, or the reason why it is not.

        Args:
          secs: time after which it is ended.
          on_finding: called with each finding, as it comes.
        """
        deadline, end = time.monotonic() + secs, None
        try:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    line = self._lines.get(timeout=min(left, _POLL_SECS))
                except queue.Empty:
                    continue
                if line is None:
                    return end if end is not None else self._why_it_died()
                told = json.loads(line)
                if "end" in told:
                    end = told["end"]
                else:
                    on_finding(Finding(**told))
            return f"failed: not over after its {secs:.0f} s; last: {self._last()}"[
                :_LONGEST_REASON
            ]
        finally:
            self.end()

    def end(self) -> None:
        """Ends the process and those that it started, and waits until they have left the device."""
        end_session(self._popen.pid)
        self._popen.wait()
        deadline = time.monotonic() + _LEAVE_SECS
        while _members(self._popen.pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)

    def _why_it_died(self) -> str:
        code, last = self._popen.wait(), self._last()
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of the machine's memory?)" if name == "SIGKILL" else ""
            return f"failed: ended by {name}{hint}; last: {last}"[:_LONGEST_REASON]
        return f"failed: ended with code {code}; last: {last}"[:_LONGEST_REASON]

    def _last(self) -> str:
        """Returns the last line of the log."""
        said = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(said) if line), "it wrote nothing")


def serve(measure: Callable[[PartOptions], Iterator[Finding]], options: PartOptions) -> int:
    """Runs a part in this process, and tells its findings and its end on standard output."""
    threading.Thread(target=_end_with_asker, daemon=True).start()
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Libraries print, too.

    def tell(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=told, flush=True)

    try:
        for finding in measure(options):
            tell(finding._asdict())
    except Exception as error:
        import traceback

        traceback.print_exc()
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        tell({"end": f"failed: {type(error).__name__}: {first}"[:_LONGEST_REASON]})
        return 1
    tell({"end": DONE})
    return 0


def _end_with_asker() -> None:
    """Waits until standard input ends, and then ends this process and those that it started."""
    while os.read(0, 1):
        pass
    end_session(os.getsid(0))


def end_session(session: int) -> None:
    """Kills all processes of a session; its leader comes last, as it may be this process.

    The roles of a run have process groups of their own, so killing one group is not enough.
    """
    for pid in [*_members(session), session]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members(session: int) -> list[int]:
    """Returns the living processes of a session without its leader; none without /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if pid != session and os.getsid(pid) == session and state != "Z":
                found.append(pid)
    return found
