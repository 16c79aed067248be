"""Sessions of roles without a run: their calls are answered by a master's part for weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_sync.cluster.rpc import CallHandlers
from rl_sync.messages.call import Call
from rl_sync.messages.master_calls import AskStatus, Happened
from rl_sync.messages.run_status import RunStatus
from rl_sync.messages.weight_calls import AskNewest
from rl_sync.ports.clock_port import SystemClock
from rl_sync.records.spans import SpanRecorder
from rl_sync.roles.master.weight_registry import WeightRegistry


class WeightMaster:
    """Answers what trainer and explorers ask about weights."""

    def __init__(self) -> None:
        self.newest, self.phase = -1, "rl"
        self.desk = CallHandlers(
            *WeightRegistry().handlers(),
            AskNewest.answered_by(lambda call: self.newest),
            Happened.answered_by(self._published),
            AskStatus.answered_by(lambda call: RunStatus(self.phase, 0, 0)),
        )

    def _published(self, call: Happened) -> None:
        self.newest = call.event.version


class LoneSession:
    """The session of the only process of a role.

    Args:
      call: answers calls, as `WeightMaster.desk` does.
    """

    def __init__(self, call: Callable[[Call], Any], role: str = "trainer") -> None:
        self.call = self.call_alone = self.tell = call
        self.role, self.clock = role, SystemClock()
        self.spans = SpanRecorder(None, role)

    def agree(self, what: str, thunk: Callable[[], Any]) -> Any:
        return thunk()

    def check(self) -> None:
        """The run goes on."""
