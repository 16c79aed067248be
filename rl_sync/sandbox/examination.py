"""Examinations: tests that run in one sandbox against a program that runs in another."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_process import Confined, await_starts, supervise
from rl_sync.sandbox.sandbox import Sandbox

START = -1
"""Number of the verdict on the program's start, which comes before the tests' verdicts."""


class ProgramTestOutcome(NamedTuple):
    """The outcome of a test. A broken test says nothing about the program."""

    test: int
    outcome: Literal["passed", "failed", "broken"]
    why: str


@dataclasses.dataclass(frozen=True)
class ProgramTests:
    """Trusted tests of a Python program.

    Attributes:
      tests: each `{"text": ...}`, or `{"call": ..., "args": [...], "kwargs": {...},
        "expected": ..., "also": [...], "tolerance": ...}`; `also` holds other right results.
      setup: text that runs before the tests, on their side.
      entry_point: an expression that names the function `candidate` of the tests, or "".
      functions: names of more functions of the program.
      classes: names of classes of the program whose objects the tests use.
      in_place: names of functions whose changes of their arguments the tests see even if they
        return a value. Of other functions, the tests see changes only if they return None.
    """

    tests: Sequence[dict[str, Any]]
    setup: str = ""
    entry_point: str = ""
    functions: Sequence[str] = ()
    classes: Sequence[str] = ()
    in_place: Sequence[str] = ()


def examine(
    sandbox: Sandbox, program: str, examination: ProgramTests, deadline: float
) -> Iterator[ProgramTestOutcome]:
    """Yields a verdict on each test in turn, until a broken test or the deadline.

    A test that stops the program, or reaches a limit, has failed; the program restarts for the
    next tests. The first verdict may be about the `START`, which ends the examination.

    Args:
      sandbox: the sandbox of the program, and of the tests. Its time limit is for each test.
      program: the program's text.
      examination: the tests.
      deadline: the time, by `time.monotonic`, at which to give up.

    Raises:
      SandboxError: the sandbox does not start.
    """
    number, tests = 0, list(examination.tests)
    while number < len(tests):
        rest = dataclasses.replace(examination, tests=tests[number:])
        first = number
        try:
            for verdict in _round(sandbox, program, rest, deadline, asked=number > 0):
                if verdict.test == START:
                    yield verdict
                    return
                number = first + verdict.test + 1
                yield verdict._replace(test=number - 1)
                if verdict.outcome == "broken":
                    return
        except SandboxError:
            if not number or time.monotonic() < deadline:
                raise  # Only a later start may fail, if no time is left.
        if time.monotonic() >= deadline:
            return
        assert number > first, "a round judges at least one test"


def _round(
    sandbox: Sandbox, program: str, examination: ProgramTests, deadline: float, asked: bool
) -> Iterator[ProgramTestOutcome]:
    """Yields verdicts until the program or its tests stop. Each stop is a verdict too."""
    with contextlib.ExitStack() as stack:
        code = stack.enter_context(sandbox.folder({"main.py": program.encode("utf-8", "replace")}))
        texts = json.dumps({**dataclasses.asdict(examination), "asked": asked}).encode()
        tests = stack.enter_context(sandbox.folder({"tests.json": texts}))
        processes = _connect(sandbox, code, tests, stack)
        examiner = processes[1]
        await_starts(processes, deadline)
        lines, current = _Lines(examiner.stderr), START
        while current < len(examination.tests):
            limit = min(deadline, time.monotonic() + sandbox.limits.wall_secs)
            arrived = supervise(processes, limit, lambda: lines.waiting or examiner.ended)
            verdict = _verdict(lines.take()) if lines.waiting else None
            if verdict is not None:
                if verdict.test != START or verdict.outcome != "passed":
                    yield verdict
                if verdict.test == START and verdict.outcome != "passed":
                    return
                current = verdict.test + 1
                continue
            if arrived and examiner.returncode == 0 and current > 0:
                return  # The previous test lost the program; see `Pipe.lost`.
            why = _stop_reason(processes, arrived, sandbox.limits.wall_secs)
            yield ProgramTestOutcome(current, "failed", why)
            return


def _connect(
    sandbox: Sandbox, code: str, tests: str, stack: contextlib.ExitStack
) -> list[Confined]:
    """Starts a program and its examiner; the output of each is the input of the other."""
    answers, requests = os.pipe(), os.pipe()
    try:
        judged = sandbox.start(code, ("program", "main.py"), stdin=requests[0], stdout=answers[1])
        stack.callback(judged.close)
        examiner = sandbox.start(
            tests, ("examiner", "tests.json"), stdin=answers[0], stdout=requests[1]
        )
        stack.callback(examiner.close)
    finally:
        for end in (*answers, *requests):
            os.close(end)
    return [judged, examiner]


def _stop_reason(processes: Sequence[Confined], arrived: bool, wall_secs: float) -> str:
    judged, examiner = processes
    if not arrived:
        return f"no result within the time limit of {wall_secs:g} s"
    for process, owner in ((judged, "the program"), (examiner, "its result")):
        if process.stopped:
            return f"{owner} exceeded the limit of {process.stopped}"
    return f"the tests ended early (exit code {examiner.returncode})"


def _verdict(line: bytes) -> ProgramTestOutcome | None:
    """Reads a line of the examiner; None if it is other output, of a sandbox that failed."""
    try:
        test, outcome, why = json.loads(line)
    except (ValueError, TypeError):
        return None
    return ProgramTestOutcome(test, outcome, why)


class _Lines:
    """Whole lines of a growing buffer."""

    def __init__(self, buffer: bytearray):
        self._buffer = buffer

    @property
    def waiting(self) -> bool:
        """Says whether there is a complete line."""
        return b"\n" in self._buffer

    def take(self) -> bytes:
        """Removes and returns the first line."""
        end = self._buffer.index(b"\n") + 1
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line
