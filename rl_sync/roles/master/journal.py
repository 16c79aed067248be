"""The master's journal: every lasting change of what the master knows, and recovery from it.

The journal is a folder of JSON lines. Each file begins with everything that the master knew then,
and goes on with the entries that came after: events of `rl_sync.messages.events`, and records
of the master's server. Whatever changes nothing but deadlines, such as heartbeats, is left out, and
so are the settings, which the run has elsewhere.

An entry is on disk before the answer of the call that it belongs to leaves. Calls that come at the
same time share one flush.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args

from rl_sync.isolation.record_json import given_fields, of_json, to_json
from rl_sync.messages.events import (
    BatchTrained,
    Command,
    Event,
    ExplorerDied,
    ExplorersSeen,
    LeasesExpired,
    Record,
    Started,
    Ticked,
)
from rl_sync.records.json_lines import RecordsError, remedy
from rl_sync.roles.master.state import MasterSettings, MasterState
from rl_sync.roles.master.transition import transition
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import PromptPast

_MOST_BYTES = 64 << 20
"""Size after which a file of the journal should be replaced by one with the whole state."""

_EVENTS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
COUNTED_STEP = "CountedStep"
"""Kind of the server's record of a trained step, which has the event in the trainer's report."""

_APART = ("settings", "history")
"""Fields of `MasterState` that are not written as they are."""


class JournalError(RuntimeError):
    """Raised if a journal cannot be recovered from; the message names the file and the line."""


class Entry(NamedTuple):
    """A line of the journal after the first: a record, by the name of its class."""

    kind: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, record: Any) -> Entry:
        """Makes the entry of a record."""
        return cls(type(record).__name__, to_json(record))

    @property
    def event(self) -> Event | None:
        """The event; None if the entry is a record of the server without one.

        Raises:
          ValueError: a field without a default is missing.
        """
        if self.kind == COUNTED_STEP:
            return of_json(BatchTrained, self.fields["call"]["event"])
        kind = _EVENTS.get(self.kind)
        return None if kind is None else of_json(kind, self.fields)


class Recorded(NamedTuple):
    """The content of a journal.

    Attributes:
      state: JSON form of the master's state at the beginning; see `state_form`.
      memory: JSON form of what the master's server knew besides.
      entries: what came after, in order.
      path: file that it was read from.
    """

    state: Mapping[str, Any]
    memory: Mapping[str, Any]
    entries: Sequence[Entry]
    path: Path


def lasting(before: MasterState, after: MasterState, event: Event, commands: Sequence[Command]) -> (
    Event | None
):  # fmt: skip
    """Returns the event to write for a transition; None if it changed nothing but deadlines.

    An explorer's death is always written: it changes more than the state.

    Args:
      before, after: states before and after the event.
      commands: commands of the transition.
    """
    if isinstance(event, ExplorerDied):
        return event
    if after is before or isinstance(event, ExplorersSeen):
        return None
    if isinstance(event, Ticked):
        records = (command for command in commands if isinstance(command, Record))
        return LeasesExpired(tuple(lease.lease_id for one in records for lease in one.leases))
    return event


def state_form(state: MasterState) -> dict[str, Any]:
    """Returns the state as JSON, without its settings except the first step."""
    names = [field.name for field in dataclasses.fields(state) if field.name not in _APART]
    return {
        **{name: to_json(getattr(state, name)) for name in names},
        "history": to_json(state.history.seen()),
        "start": state.settings.schedule.start,
    }


def state_of(form: Mapping[str, Any], settings: MasterSettings) -> MasterState:
    """Inverts `state_form`, with settings as they are before the run's start."""
    schedule = dataclasses.replace(settings.schedule, start=form["start"])
    settings = dataclasses.replace(settings, schedule=schedule)
    kept = {name: value for name, value in form.items() if name not in _APART}
    history = PromptHistory.of_seen(of_json(tuple[PromptPast, ...], form.get("history", ())))
    return MasterState(settings, history=history, **given_fields(MasterState, kept))


def recover(directory: Path, settings: MasterSettings) -> MasterState:
    """Returns the state that a journal leads to; all deadlines are those of the grants.

    Args:
      settings: settings of the run.

    Raises:
      JournalError: the journal is missing or damaged.
    """
    recorded = read_journal(directory)
    state = state_of(recorded.state, settings)
    for entry in recorded.entries:
        if (event := entry.event) is not None:
            state, _ = transition(state, event)
    return state


def read_journal(directory: Path) -> Recorded:
    """Reads the newest file with a whole beginning; a torn last line is left out.

    Raises:
      JournalError: there is no such file, or a line before the last is damaged.
    """
    for path in reversed(_files(directory)):
        lines = path.read_bytes().split(b"\n")
        whole = [_parsed(line) for line in lines[:-1]]
        if whole and whole[-1] is None:
            whole.pop()  # It was being written when the machine stopped.
        if None in whole:
            raise JournalError(
                f"{path}, line {whole.index(None) + 1} is damaged, so the master cannot go on from"
                " its journal. Start the run again: it goes on from the newest snapshot."
            )
        if whole:
            first, *rest = (line for line in whole if line is not None)
            entries = [Entry(line["kind"], line["fields"]) for line in rest]
            return Recorded(first["state"], first["memory"], entries, path)
    raise JournalError(
        f"{directory} has no journal of a master. Start the run again: it goes on from the newest"
        " snapshot."
    )


class CountedSteps(NamedTuple):
    """The trainer steps that a journal counts.

    Attributes:
      start: step that the schedule counts from.
      last: the last one.
    """

    start: int
    last: int


def counted_steps(directory: Path) -> CountedSteps | None:
    """Returns the trainer steps that a journal counts; None if no trainer had been ready.

    Raises:
      JournalError: the journal is missing or damaged.
    """
    recorded = read_journal(directory)
    state = recorded.state
    found = None
    if state.get("begun"):
        found = CountedSteps(state["start"], state["trained_steps"])
    for entry in recorded.entries:
        match entry.event:
            case Started(position):
                found = CountedSteps(position.step, position.step)
            case BatchTrained(step=step) if found is not None:
                found = found._replace(last=step)
    return found


class Journal:
    """Writes a journal, from any thread.

    Args:
      directory: folder of the journal; files of earlier masters in it count as older.
      sync: flushes a file to the disk.
    """

    def __init__(self, directory: Path, sync: Callable[[int], None] = os.fsync) -> None:
        self._directory, self._sync = directory, sync
        directory.mkdir(parents=True, exist_ok=True)
        files = _files(directory)
        self._number = int(files[-1].stem) if files else 0
        self._file: BinaryIO | None = None
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._appended = self._durable = 0
        self._is_flushing = self._is_broken = False
        self._bytes = 0

    @property
    def is_long(self) -> bool:
        """True if the file should be replaced by one with the whole state."""
        return self._bytes > _MOST_BYTES

    def append(self, record: Any) -> None:
        """Adds an entry, which `commit` brings to the disk."""
        kind, fields = Entry.of(record)
        line = _line({"kind": kind, "fields": fields})
        with self._changed:
            self._waiting.append(line)
            self._appended += 1

    def commit(self) -> None:
        """Waits until every entry so far is on disk; one of the waiting threads flushes for all.

        Raises:
          RecordsError: the disk is full, for example. The journal is then deleted, since it would
            have a gap.
        """
        with self._changed:
            wanted = self._appended
            while self._durable < wanted:
                if self._is_flushing:
                    self._changed.wait()
                    continue
                self._flush()

    def begin(self, state: MasterState, memory: Any) -> None:
        """Starts a new file with everything that is known, then deletes the older ones.

        The caller must make sure that nothing is appended meanwhile.

        Raises:
          RecordsError: it cannot be written; the older files stay.
        """
        line = _line({"state": state_form(state), "memory": to_json(memory)})
        with self._changed:
            self._changed.wait_for(lambda: not self._is_flushing)
            if self._is_broken:
                return
            old, path = _files(self._directory), self._path(self._number + 1)
            try:
                file = open(path, "wb", buffering=0)  # noqa: SIM115
                _write(file, line)
                self._sync(file.fileno())
                self._sync_directory()
            except OSError as error:
                raise _cannot_be_written(path, error) from error
            if self._file is not None:
                self._file.close()
            self._file, self._number, self._bytes = file, self._number + 1, len(line)
            # The state has what these lines say.
            self._waiting, self._durable = [], self._appended
            self._changed.notify_all()
        for one in old:
            one.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_flushing)
            if self._file is not None:
                self._file.close()
                self._file = None

    def _flush(self) -> None:
        """Brings all waiting lines to the disk; frees the lock of the caller meanwhile."""
        lines, upto, self._waiting = self._waiting, self._appended, []
        if self._file is None or self._is_broken:
            self._durable = upto
            return
        file, failure, self._is_flushing = self._file, None, True
        self._changed.release()
        try:
            _write(file, b"".join(lines))
            self._sync(file.fileno())
        except OSError as error:
            failure = error
        finally:
            self._changed.acquire()
            self._is_flushing = False
        self._bytes += sum(map(len, lines))
        self._durable = upto
        self._changed.notify_all()
        if failure is not None:
            self._is_broken = True
            for path in _files(self._directory):
                with contextlib.suppress(OSError):
                    path.unlink()
            raise _cannot_be_written(self._path(self._number), failure) from failure

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.jsonl"

    def _sync_directory(self) -> None:
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            self._sync(folder)
        finally:
            os.close(folder)


def _files(directory: Path) -> list[Path]:
    """Returns the files of a journal, the oldest first."""
    return sorted(directory.glob("*.jsonl"))


def _line(form: Mapping[str, Any]) -> bytes:
    return json.dumps(form, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Reads a line; None if it is damaged."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _write(file: BinaryIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _cannot_be_written(path: Path, error: OSError) -> RecordsError:
    return RecordsError(
        f"{path} cannot be written: {error.strerror or error}. The run relies on these records:"
        f" {remedy(error)}, and run it again."
    )
