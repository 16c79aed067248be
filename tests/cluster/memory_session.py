"""A session without a master: its settings are real, its spans are kept, and a test answers it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from rl_sync.cluster.session import Session
from rl_sync.cluster.team import Team
from rl_sync.records.spans import SpanKind, SpanRecorder
from tests.settings.changed import settings_with


class KeptSpans(SpanRecorder):
    """Spans that nobody writes.

    Attributes:
      ended: kind and attributes of each, in the order of their ends.
    """

    def __init__(self, role: str) -> None:
        super().__init__(None, role)
        self.ended: list[tuple[SpanKind, dict[str, Any]]] = []

    def record(self, kind, start_secs, end_secs, /, **attributes) -> None:
        super().record(kind, start_secs, end_secs, **attributes)
        self.ended.append((kind, attributes))

    def of(self, kind: SpanKind) -> list[dict[str, Any]]:
        """Returns the attributes of all spans of a kind."""
        return [attributes for one, attributes in self.ended if one is kind]


class MemorySession(Session):
    """The session of a role's only process.

    Args:
      answer: answers each call to the master.
      workdir: the run's.
      fields: settings besides the defaults; `sync__mode` stands for sync.mode.

    Attributes:
      calls: the calls to the master so far.
    """

    secret = ""

    def __init__(
        self,
        answer: Callable[[Any], Any] = lambda call: None,
        role: str = "trainer",
        workdir: str | os.PathLike[str] = "",
        **fields: Any,
    ) -> None:
        self.settings = dataclasses.replace(settings_with(**fields), workdir=str(workdir))
        self.role = self.name = role
        self.spans: KeptSpans = KeptSpans(role)
        self.facts = {}
        self.team = Team()
        self.answer, self.calls = answer, []
        self._stop = self._progress = None

    def call_alone(self, call):
        self.calls.append(call)
        return self.answer(call)

    def stop(self) -> None:
        """Lets the run be stopped."""
        self._stop = "the user asked for it"

    def silences(self):
        return []

    def close(self) -> None:
        pass
