"""The master's part of the display: the reports of all roles, and how far the run is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from rl_sync.messages.run_status import Alarm, RoleStatus, RunStatus
from rl_sync.records.run_totals import Pace
from rl_sync.role_names import TRAINER
from rl_sync.roles.master.state import MasterState
from rl_sync.settings.run_settings import RunSettings

_SFT, _RL = "sft", "rl"
_MEMORY = 0.9  # The weight of the average so far: about ten steps count.


class _MovingMean:
    """Bias-corrected exponential moving average of rewards, each of which is told several times."""

    def __init__(self) -> None:
        self._last: tuple[int | None, float] | None = None
        self._total = self._mass = 0.0

    def take(self, step: int | None, value: float) -> None:
        """Takes a step's value, unless it is the one before again."""
        if (step, value) != self._last:
            self._last = step, value
            self._total = _MEMORY * self._total + (1 - _MEMORY) * value
            self._mass = _MEMORY * self._mass + (1 - _MEMORY)

    @property
    def value(self) -> float:
        """The average."""
        return self._total / self._mass


class StatusBoard:
    """The last reports of all roles. Calls must not overlap, except of `heard` and `show`.

    Args:
      settings: settings of the run.
      began_secs: start of the run, in Unix seconds.
      phase: phase of the run.

    Attributes:
      phase: phase of the run.
    """

    def __init__(self, settings: RunSettings, began_secs: float, phase: str) -> None:
        self._settings, self._began_secs = settings, began_secs
        self.phase, self._message = phase, ""
        self._roles: dict[str, RoleStatus] = {}
        self._rewards: dict[str, _MovingMean] = {}
        self._sft_step = 0
        self._paces = {one: Pace() for one in (_SFT, _RL)}

    def heard(self, status: RoleStatus) -> None:
        """Takes the report of a role, and shows the moving mean of its rewards."""
        if status.reward is not None:
            mean = self._rewards.setdefault(status.role, _MovingMean())
            mean.take(status.step, status.reward)
            status = dataclasses.replace(status, reward=mean.value)
        self._roles[status.role] = status

    def role(self, role: str) -> RoleStatus | None:
        """Returns the last report of a role; None before the first."""
        return self._roles.get(role)

    def trained(self, step: int) -> None:
        """Notes that a step of RL was trained now."""
        self._paces[_RL].note(step, time.monotonic())

    def show(self, message: str) -> None:
        """Shows a line."""
        self._message = message

    def enter(self, phase: str, message: str) -> None:
        """Enters a phase; without a message the last one stays."""
        self.phase, self._message = phase, message or self._message

    def status(
        self, state: MasterState, raised: Sequence[Alarm], examples: Sequence[str]
    ) -> RunStatus:
        """Returns what the display shows.

        Args:
          state: the master's state.
          raised: alarms.
          examples: completions that help with these alarms.
        """
        settings, now = self._settings, time.monotonic()
        step, steps, loss = state.trained_steps, settings.trainer.steps, None
        if self.phase == _SFT:
            if (trainer := self.role(TRAINER)) is not None:
                # The evaluation at the end of SFT has step 0, like the evaluations before RL.
                self._sft_step = max(self._sft_step, trainer.step or 0)
                self._paces[_SFT].note(self._sft_step, now)
                loss = trainer.loss
            step, steps = self._sft_step, settings.sft.steps
        pace = self._paces.get(self.phase)
        return RunStatus(
            phase=self.phase,
            step=step,
            steps=steps,
            roles=tuple(self._roles[role] for role in settings.roles if role in self._roles),
            buffer_size=state.buffered,
            buffer_capacity=settings.groups_ahead,
            elapsed_secs=time.time() - self._began_secs,
            left_secs=pace.left_secs(steps, now) if pace and step < steps else None,
            message=self._message,
            loss=loss,
            alarms=tuple(raised),
            examples=tuple(examples),
        )
