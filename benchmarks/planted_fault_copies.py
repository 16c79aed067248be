"""Copies of the repository: with a fault, with marks in the functions of faults, or unchanged."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import planted_fault_marks as marks
import planted_fault_plugin as plugin
from planted_fault_table import Fault

_HERE = Path(__file__).resolve().parent
_ENDING_SECS = 60.0
SESSION = "the session"
"""What stands for a test where pytest failed as a whole, for example because it crashed."""


class TestRun(NamedTuple):
    """A run of pytest.

    Attributes:
      secs: seconds of each test that ended, with its fixtures.
      failed: tests that failed, in order; files that cannot be collected, or `SESSION`.
      is_late: whether the time was up before the end.
      output: what it printed.
    """

    secs: dict[str, float]
    failed: list[str]
    is_late: bool
    output: str


def tracked(root: Path) -> list[str]:
    """Returns the names of a repository's files that git tracks, and that are there."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0")[:-1] if os.path.lexists(root / name)]


class Copy:
    """A copy of the tracked files of a repository, as they are in its working tree.

    Args:
      root: the repository.
      folder: where the copy is made.

    Raises:
      SystemExit: Python imports the package from elsewhere when it runs in the copy.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.path = folder
        for name in tracked(root):
            source, target = root / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        shutil.copy2(Path(plugin.__file__), folder)
        # Tests may ask git about the files.
        subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        self._require_itself()

    def _require_itself(self) -> None:
        for directory in (str(self.path), "/"):
            told = subprocess.run(
                [sys.executable, "-c", "import rl_sync; print(rl_sync.__file__)"],
                cwd=directory,
                env=self._environment({}),
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            if not Path(told).is_relative_to(self.path):
                sys.exit(f"Python in {directory} imports {told}, not the copy in {self.path}.")

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PLANTED_"))}
        return {**own, "PYTHONPATH": str(self.path), **variables}

    def delete(self) -> None:
        """Deletes the copy."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plants a fault within the block."""
        file = self.path / fault.path
        before = file.read_text()
        self._write(file, planted(before, fault))
        try:
            yield
        finally:
            self._write(file, before)

    def mark(self, faults: Sequence[Fault]) -> None:
        """Marks the functions of faults; see `planted_fault_marks`."""
        shutil.copy2(Path(marks.__file__), self.path / "rl_sync")
        for fault in faults:
            file = self.path / fault.path
            self._write(file, marked(file.read_text(), fault))

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        # A file of the same size, written within the same second, would pass for the former one.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def run(
        self,
        arguments: Sequence[str],
        *,
        tests: Sequence[str] | None = None,
        limit_secs: float | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> TestRun:
        """Runs pytest in the copy.

        Args:
          tests: ids of the tests to run, in order; None for those that the arguments choose.
        """
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            own = {plugin.REPORTS: f"{directory}/reports", **(variables or {})}
            command = [sys.executable, "-m", "pytest", "-q", "-p", Path(plugin.__file__).stem]
            command += ["-p", "no:cacheprovider", f"--basetemp={directory}/tests", *arguments]
            if tests is not None:
                own[plugin.ORDER] = f"{directory}/order"
                Path(own[plugin.ORDER]).write_text(json.dumps(tests))
                command += ["-m", "", *dict.fromkeys(test.partition("::")[0] for test in tests)]
            output = Path(directory, "output")
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    cwd=self.path,
                    env=self._environment(own),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                code = _ended(process, limit_secs)
            found = output.read_text(errors="replace")
            return _test_run(Path(own[plugin.REPORTS]), code, found)


def _ended(process: subprocess.Popen[bytes], limit_secs: float | None) -> int | None:
    """Waits for the end of pytest; returns its exit status, or None if the time was up."""
    try:
        return process.wait(limit_secs)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # So that tests end what they started.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECS)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _test_run(reports: Path, code: int | None, output: str) -> TestRun:
    text = reports.read_text() if reports.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    secs: dict[str, float] = {}
    for line in lines:
        secs[line["test"]] = secs.get(line["test"], 0.0) + line["secs"]
    failed = [line["test"] for line in lines if line["outcome"] == "failed"]
    if not failed and code not in (None, 0, 5):  # 5: there was no test.
        failed = [SESSION]
    return TestRun(secs, list(dict.fromkeys(failed)), code is None, output)


def planted(text: str, fault: Fault) -> str:
    """Returns the text of a file with a fault.

    Raises:
      ValueError: the old text does not occur once.
    """
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name}: {fault.path} has its old text {count} times, not once.")
    return text.replace(fault.old, fault.new)


def marked(text: str, fault: Fault) -> str:
    """Returns the text of a file with a mark at the beginning of the fault's function.

    Raises:
      ValueError: the old text does not occur once, or not in a function.
    """
    planted(text, fault)
    at = text.index(fault.old) + len(fault.old) - len(fault.old.lstrip())
    number = text.count("\n", 0, at) + 1
    function = _function_at(text, number)
    if function is None:
        raise ValueError(f"{fault.name}: {fault.path} has its old text outside of a function.")
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    decorators: list[Any] = getattr(first, "decorator_list", [])
    line = min([first.lineno, *(one.lineno for one in decorators)])
    mark = f"from rl_sync import {marks.__name__}; {marks.__name__}.note({fault.name!r})\n"
    lines = text.splitlines(keepends=True)
    lines.insert(line - 1, " " * first.col_offset + mark)
    return "".join(lines)


def _function_at(text: str, number: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Returns the innermost function at a line."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def reached(folder: Path, fault: Fault) -> list[str]:
    """Returns the tests that have reached a fault's function."""
    file = folder / fault.name
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted({line.rpartition(" (")[0] for line in lines} - {""})
