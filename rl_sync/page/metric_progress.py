"""Metrics, settings and alarms of a run, as far as its files have come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_sync import schedule as schedules
from rl_sync.page.tail import Tail, is_inside
from rl_sync.records import alarms
from rl_sync.records.metrics import is_void
from rl_sync.records.resumption import RESUMED_AT
from rl_sync.workdir import Workdir


class MetricProgress:
    """Lines of metrics by phase, and what follows from them.

    Args:
      workdir: the run's directory.

    Attributes:
      lines: the lines that count, in their order.
    """

    def __init__(self, workdir: Path):
        self._workdir = Workdir(workdir)
        self._metrics = Tail(self._workdir.metrics, workdir)
        self._restarts = Tail(self._workdir.restarts, workdir)
        self.lines: list[dict[str, Any]] = []
        self._restarted: dict[str, int] = {}
        self._history: tuple[int, list[alarms.Period]] = (0, [])
        self._config: tuple[int, dict[str, Any]] = (0, {})

    def refresh(self) -> None:
        """Reads what is new."""
        news = self._metrics.read()
        if news.is_anew:
            self.lines, self._history = [], (0, [])
        for line in news.lines:
            self._add(line.record)
        restarts = self._restarts.read()
        if restarts.is_anew:
            self._restarted = {}
        for one in restarts.lines:
            role = str(one.record.get("role"))
            self._restarted[role] = self._restarted.get(role, 0) + 1

    def _add(self, record: dict[str, Any]) -> None:
        if RESUMED_AT in record:
            self.lines = [line for line in self.lines if not is_void(line, record)]
            self._history = (0, [])
        elif {"phase", "step"} <= record.keys():
            self.lines.append(record)

    def of_phase(self, phase: str) -> list[dict[str, Any]]:
        """Returns the lines of one phase."""
        return [line for line in self.lines if line["phase"] == phase]

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the run; empty if there are none that can be read."""
        path = self._workdir.config
        try:
            changed = path.stat().st_mtime_ns
            if changed != self._config[0] and is_inside(path, Path(self._workdir)):
                found = json.loads(path.read_text())
                self._config = (changed, found if isinstance(found, dict) else {})
        except (OSError, ValueError):
            return {}
        return self._config[1]

    def setting(self, section: str, name: str) -> Any:
        """Returns a setting; None if the run does not have it."""
        return self.config.get(section, {}).get(name)

    @property
    def staleness_bound(self) -> int | None:
        """The greatest staleness that the schedule allows, in trainer steps; None if unknown."""
        names = ("interval", "offset", "max_staleness", "pull")
        try:
            values = {name: self.setting("sync", name) for name in names}
            return schedules.resolve(self.setting("sync", "mode"), **values).staleness_bound
        except (ValueError, TypeError):
            return None

    @property
    def periods(self) -> list[alarms.Period]:
        """The alarms of the run, those that hold now among them."""
        if len(self.lines) != self._history[0]:
            self._history = (len(self.lines), alarms.history(self.lines, self._limits))
        restarted = alarms.raised(alarms.Evidence(self._limits, restarts=self._restarted))
        last = self.last_step
        return [*self._history[1], *(alarms.Period(one, last, last) for one in restarted)]

    @property
    def last_step(self) -> int:
        """The last trainer step with metrics, also of an evaluation; 0 for none."""
        return alarms.last_step(self.lines)

    @property
    def _limits(self) -> alarms.AlarmLimits:
        return alarms.AlarmLimits(
            steps=self.setting("observe", "alarm_steps") or alarms.AlarmLimits().steps,
            group_size=self.setting("trainer", "group_size") or alarms.AlarmLimits().group_size,
            logprob_gap=self.setting("algorithm", "logprob_gap_alarm") or 0.0,
        )
