"""Progress of compilations on standard error, and their interruption."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_LOOK_SECS = 0.5
_CLEAR = "\r\x1b[K"

Result = TypeVar("Result")


class CompilingInterruptedError(KeyboardInterrupt):
    """The user has interrupted a compilation; the message names it, and counts the finished ones.

    Its thread still runs, since nothing can stop XLA's compiler. So end the process at once.
    """


class CompileProgress:
    """Names each program before it is compiled, as `compiling NAME (2 of 4)`.

    On a terminal the line also has the seconds so far, and vanishes at the end. Elsewhere there is
    one line for each program.

    Args:
      count: number of programs.
    """

    def __init__(self, count: int) -> None:
        self._count, self._begun = count, 0

    def compiling(self, name: str, work: Callable[[], Result]) -> Result:
        """Runs `work` in a thread, and returns its result.

        Python handles an interrupt only between its own instructions, and a compilation is none of
        them for minutes. So this thread waits, and may be interrupted.

        Raises:
          CompilingInterruptedError: the user has interrupted it.
          Exception: whatever `work` raises.
        """
        self._begun += 1
        head = f"  compiling {name} ({self._begun} of {self._count})"
        shows = sys.stderr.isatty()
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        thread = threading.Thread(target=_settle, args=(future, work), name="compile", daemon=True)
        try:
            if not shows:
                print(f"{head} …", file=sys.stderr, flush=True)
            started = time.monotonic()
            thread.start()
            while not future.done():
                if shows:
                    secs = time.monotonic() - started
                    print(f"{_CLEAR}{head}, {secs:.0f} s", end="", file=sys.stderr, flush=True)
                concurrent.futures.wait([future], timeout=_LOOK_SECS)
        except KeyboardInterrupt:
            raise CompilingInterruptedError(
                f"Interrupted while {name} was compiled: {self._begun - 1} of {self._count}"
                " programs are done."
            ) from None
        finally:
            if shows:
                print(_CLEAR, end="", file=sys.stderr, flush=True)
        return future.result()


def _settle(future: concurrent.futures.Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
