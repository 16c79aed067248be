"""Sessions of roles without a run: their calls are answered by a master's part for weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_sync.observe.spans import SpanRecorder
from rl_sync.processes.calls import Happened
from rl_sync.processes.rpc import Call, Desk
from rl_sync.processes.weight_calls import AskNewest
from rl_sync.runtime.weight_desk import WeightDesk


class WeightMaster:
    """Answers what trainer and explorers ask about weights."""

    def __init__(self) -> None:
        self.newest = -1
        self.desk = Desk(
            *WeightDesk().handlers(),
            AskNewest.answered_by(lambda call: self.newest),
            Happened.answered_by(self._published),
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
        self.role = role
        self.spans = SpanRecorder(None, role)

    def agree(self, what: str, thunk: Callable[[], Any]) -> Any:
        return thunk()

    def check(self) -> None:
        """The run goes on."""
