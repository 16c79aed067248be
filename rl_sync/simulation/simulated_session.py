"""The session of a role whose code runs in virtual time, and the spans that it records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rl_sync.cluster.session import Session
from rl_sync.cluster.team import Team
from rl_sync.messages.call import Call
from rl_sync.messages.run_status import Silence
from rl_sync.ports.clock_port import Clock
from rl_sync.records.spans import Span, SpanKind, SpanRecorder
from rl_sync.settings.run_settings import RunSettings

T = TypeVar("T")


class VirtualSpans(SpanRecorder):
    """Spans in virtual time.

    Args:
      role: the role.
      now: returns the virtual time.
      add: called with each span.
    """

    def __init__(self, role: str, now: Callable[[], float], add: Callable[[Span], None]) -> None:
        self._now, self._add = now, add
        super().__init__(None, role)

    def now(self) -> float:
        """See `SpanRecorder`."""
        return self._now()

    def record(
        self, kind: SpanKind, start_secs: float, end_secs: float, /, **attributes: Any
    ) -> None:
        """See `SpanRecorder`."""
        super().record(kind, start_secs, end_secs, **attributes)
        attributes.pop("cpu_secs", None)  # It depends on the machine.
        self._add(Span(self.role, kind, start_secs, end_secs, attributes))


class SimulatedSession(Session):
    """The session of a role's only process; a subclass answers its calls.

    Args:
      settings: settings of the run.
      spans: gets the role's spans.
      clock: time and threads of the role.
    """

    def __init__(self, settings: RunSettings, spans: VirtualSpans, clock: Clock) -> None:
        self.settings, self.spans, self.clock = settings, spans, clock
        self.role = self.name = spans.role
        self.facts = {}
        self.team = Team()
        self._stop = self._progress = None

    def call_alone(self, call: Call[T]) -> T:
        """See `Session`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Leaves the objects of this run to the garbage collection."""

    def silences(self) -> list[Silence]:
        """Nobody is silent."""
        return []

    def close(self) -> None:
        """Has nothing open."""
