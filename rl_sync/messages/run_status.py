"""Status of a run, of its roles and of its processes, as the master reports it."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

from rl_sync.isolation.codec import record


@record
@dataclasses.dataclass(frozen=True)
class RoleStatus:
    """Status of one role.

    Attributes:
      role: the name of the role.
      activity: the work of the role, as a `SpanKind` or any word; also set during a wait.
      since_secs: the duration of the activity or wait so far, in seconds.
      waits_for: the reason of a wait in progress; None while working.
      step: its explorer step or trainer step.
      version: the policy version that it holds.
      tokens_per_sec: tokens generated, or trained on, in a second.
      reward: the mean reward of its last batch; on the display, the moving mean of them.
      staleness: the staleness of its last batch, in trainer steps.
      loss: the loss of its last SFT step.
      done, of: the number of finished parts of the activity, and of all parts; None if not known.
    """

    role: str
    activity: str
    since_secs: float
    waits_for: str | None = None
    step: int | None = None
    version: int | None = None
    tokens_per_sec: float | None = None
    reward: float | None = None
    staleness: float | None = None
    loss: float | None = None
    done: int | None = None
    of: int | None = None


@record
class Alarm(NamedTuple):
    """An alarm that was raised.

    Attributes:
      name: see `rl_sync.records.alarms.AlarmKind`.
      text: one sentence about the problem, and one of advice.
    """

    name: str
    text: str


@record
@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Status of a run.

    Attributes:
      phase: the phase, such as "sft", "rl" or "evaluation".
      step, steps: the number of finished steps of the phase, and of all its steps.
      roles: the status of each role, in the order of display.
      buffer_size, buffer_capacity: number of groups in the buffer, and its maximum.
      elapsed_secs: the time since the start of the run.
      left_secs: the time that the rest of the phase will take; None if that is not known yet.
      message: a message on a line of its own; empty for none.
      loss: the loss of the phase's last step; None if the phase has no loss.
      alarms: the alarms that hold now.
      examples: completions that an alarm is about, one line each.
    """

    phase: str
    step: int
    steps: int
    roles: tuple[RoleStatus, ...] = ()
    buffer_size: int | None = None
    buffer_capacity: int | None = None
    elapsed_secs: float = 0.0
    left_secs: float | None = None
    message: str = ""
    loss: float | None = None
    alarms: tuple[Alarm, ...] = ()
    examples: tuple[str, ...] = ()


@record
class Silence(NamedTuple):
    """A process that has stopped sending heartbeats.

    Attributes:
      name: name of the process; see `process_name`.
      process: its process id.
      secs: seconds since its last heartbeat.
      doing: its activity at the last heartbeat.
    """

    name: str
    process: int
    secs: float
    doing: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - self.secs))
        return (
            f"{self.name} (process {self.process}) hangs, or was stopped: it has sent no heartbeat"
            f" for {self.secs:.0f} s, since {since}, when it was {self.doing}"
        )
