"""Spans: the start and end of each activity and each wait of a role.

Each role writes its own file, `workdir/spans/<role>.jsonl`. Roles are named `explorer1`,
`explorer2`, …, `trainer`, `master`. Times are Unix seconds, so that the roles of one machine can be
compared. Within a role they follow the monotonic clock, so that no duration is negative.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import os
import threading
import time
from collections.abc import Iterator, Mapping

from rl_sync.clock import now_secs
from rl_sync.records.chaos_windows import lookout
from rl_sync.records.json_lines import JsonLinesWriter, JsonObject, plain
from rl_sync.records.resumption import mark
from rl_sync.transfer import TRANSFERS


class SpanKind(enum.StrEnum):
    """Kind of a role's activity."""

    ROLLOUT = "rollout"
    SCORE = "score"
    INSERT = "insert"
    TRAIN = "train"
    TRAIN_AGAIN = "train_again"
    SFT = "sft"
    EVALUATION = "evaluation"
    WAIT = "wait"
    SNAPSHOT = "snapshot"
    COMPILE = "compile"
    REPORT = "report"
    # One for each transfer of weights; see `sync_kind`.
    _ignore_ = "_members _name"
    _members = vars()
    for _name in TRANSFERS:
        _members[f"SYNC_{_name.upper()}"] = f"sync_{_name}"

    @classmethod
    def _missing_(cls, value: object) -> SpanKind | None:
        """Accepts the name of SFT in older records."""
        return cls.SFT if value == "warm_up" else None


def sync_kind(transfer: str) -> SpanKind:
    """Returns the kind of the spans of a weight transfer, given the transfer's name."""
    return SpanKind(f"sync_{transfer}")


SYNC_KINDS = frozenset(map(sync_kind, TRANSFERS))


@dataclasses.dataclass(frozen=True)
class Span:
    """One interval of one role's time.

    Attributes:
      role: the name of the role.
      kind: the kind of activity.
      start_secs, end_secs: Unix seconds.
      attributes: JSON values. By convention `step`, `version` (of the weights), `versions` (the
        sorted, distinct versions in a train batch), `leases` (ids of the groups that enter or leave
        the buffer), `dropped` (ids of the groups that a trainer sampled and rejected), `tokens`,
        and for a wait `reason`, such as "experiences", "synchronization", "prompts".
    """

    role: str
    kind: SpanKind
    start_secs: float
    end_secs: float
    attributes: JsonObject = dataclasses.field(default_factory=dict, hash=False)

    @property
    def duration_secs(self) -> float:
        return self.end_secs - self.start_secs

    @property
    def step(self) -> int | None:
        """The explorer step or the trainer step of the span, if recorded."""
        return self.attributes.get("step")

    @property
    def version(self) -> int | None:
        """The policy version that the span used, published or pulled, if recorded."""
        return self.attributes.get("version")

    @property
    def leases(self) -> tuple[int, ...]:
        """The groups that the span generated, inserted or consumed."""
        return tuple(self.attributes.get("leases", ()))

    def to_json(self) -> JsonObject:
        """Returns the span as the object of one line."""
        return {
            "role": self.role,
            "kind": str(self.kind),
            "start": self.start_secs,
            "end": self.end_secs,
            **({"attributes": plain(self.attributes)} if self.attributes else {}),
        }

    @classmethod
    def from_json(cls, record: JsonObject) -> Span:
        """Inverts `to_json`.

        Raises:
          KeyError: a field is missing.
          ValueError: the kind is unknown.
        """
        return cls(
            role=record["role"],
            kind=SpanKind(record["kind"]),
            start_secs=float(record["start"]),
            end_secs=float(record["end"]),
            attributes=record.get("attributes", {}),
        )


_CPU_KINDS = frozenset({SpanKind.ROLLOUT, SpanKind.TRAIN})


@dataclasses.dataclass(frozen=True)
class OpenSpan:
    """The current activity of a role.

    Attributes:
      kind, attributes: as in `Span`.
      reason: the reason of a wait; None for other kinds.
      start_secs: Unix seconds.
      lasted_secs: the time since its start.
    """

    kind: SpanKind
    reason: str | None
    start_secs: float
    lasted_secs: float
    attributes: JsonObject


@dataclasses.dataclass(eq=False)
class _Open:
    kind: SpanKind
    start_secs: float
    attributes: JsonObject
    thread: int = dataclasses.field(default_factory=threading.get_ident)


class SpanRecorder:
    """Writes one role's spans, from any of its threads.

    A span is written when it ends, and each line is flushed. So a killed role loses only its open
    spans. The recorder is a context manager that closes the file. Without a path it writes nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None, role: str):
        self.role = role
        self._writer = None if path is None else JsonLinesWriter(path, vital=False)
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._spent: dict[str, float] = collections.defaultdict(float)
        self._unix_minus_monotonic = now_secs() - time.monotonic()
        self._began_secs = self.now()
        self._look = lookout(role)

    def now(self) -> float:
        """Returns Unix seconds by the run's clock; they never go back."""
        return time.monotonic() + self._unix_minus_monotonic

    @contextlib.contextmanager
    def span(self, kind: SpanKind, /, **attributes: object) -> Iterator[JsonObject]:
        """Records the body of a `with` statement.

        Yields the attributes, so that the body can add to them. A body that raises is recorded too,
        with the exception's name as the attribute `error`. Rollouts and train steps also get the
        CPU time of the process, as `cpu_secs`.
        """
        opened, cpu_secs = _Open(kind, self.now(), attributes), time.process_time()
        with self._lock:
            self._open.append(opened)
        self.enter(kind)
        try:
            yield attributes
        except BaseException as error:
            attributes["error"] = type(error).__name__
            raise
        finally:
            with self._lock:
                self._open.remove(opened)
            if kind in _CPU_KINDS:
                attributes["cpu_secs"] = round(time.process_time() - cpu_secs, 4)
            self.record(kind, opened.start_secs, self.now(), **attributes)

    def enter(self, window: str) -> None:
        """Says that the role enters a window, in which `chaos` may strike; see `chaos_windows`."""
        if self._look is not None:
            self._look(window)

    def record(
        self, kind: SpanKind, start_secs: float, end_secs: float, /, **attributes: object
    ) -> None:
        """Records a finished span; its times are from `now`.

        Raises:
          ValueError: the span ends before it starts, or the recorder is closed.
        """
        if end_secs < start_secs:
            raise ValueError(
                f"A span must not end before it starts: {self.role} recorded {kind} from"
                f" {start_secs} to {end_secs}. Take both times from SpanRecorder.now()."
            )
        with self._lock:
            self._spent[str(kind)] += end_secs - start_secs
        if self._writer is not None:
            self._writer.write(Span(self.role, kind, start_secs, end_secs, attributes).to_json())

    def resume(self, step: int, sft_step: int | None = None) -> None:
        """Marks that the run resumes; see `rl_sync.records.resumption.mark`."""
        if self._writer is not None:
            self._writer.write(mark(step, sft_step, began=self._began_secs))

    def count(self, amounts: Mapping[str, float]) -> None:
        """Adds to totals of other things than time, by name; see `spent`."""
        with self._lock:
            for name, amount in amounts.items():
                self._spent[name] += amount

    @property
    def spent(self) -> dict[str, float]:
        """The total seconds of finished spans of each kind, and the totals that were counted.

        Spans of threads may overlap.
        """
        with self._lock:
            return dict(self._spent)

    @property
    def current(self) -> OpenSpan | None:
        """The innermost open span of a working thread, or else of a waiting one; None without any.

        Among several threads, the one that opened its span last counts.
        """
        with self._lock:
            innermost = {opened.thread: opened for opened in self._open}.values()
        if not innermost:
            return None
        working = [opened for opened in innermost if opened.kind is not SpanKind.WAIT]
        opened = max(working or innermost, key=lambda opened: opened.start_secs)
        attributes = dict(opened.attributes)
        reason = attributes.get("reason", "something") if opened.kind is SpanKind.WAIT else None
        lasted_secs = self.now() - opened.start_secs
        return OpenSpan(opened.kind, reason, opened.start_secs, lasted_secs, attributes)

    def close(self) -> None:
        """Closes the file; closing twice is fine."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> SpanRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
