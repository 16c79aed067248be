"""The one reader of a run's work directory, which follows the files as they grow.

Whole reads of single files, such as `read_metrics` and `read_spans`, use the same readers.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_sync import schedule as schedules
from rl_sync.records import alarms
from rl_sync.records.accuracy import MeasuredAccuracy
from rl_sync.records.flow import Flow
from rl_sync.records.json_lines import JsonObject, read_object
from rl_sync.records.lost_time import LostTimeWatch, RestartLines
from rl_sync.records.metric_catalog import EVALUATION, RL
from rl_sync.records.metrics import MetricLines, as_number
from rl_sync.records.outages import LostTime
from rl_sync.records.rollouts.recorded_images import ShownImage, shown_images
from rl_sync.records.rollouts.rollout_index import RolloutIndex
from rl_sync.records.rollouts.rollout_records import Rollout, parts
from rl_sync.records.run_outcome import RunOutcome, read_outcome
from rl_sync.records.run_totals import Pace
from rl_sync.records.span_reader import SpanLines
from rl_sync.records.spans import Span
from rl_sync.records.summary import RunSummary, summarize
from rl_sync.records.tokens.device_time import DeviceTime, device_secs
from rl_sync.records.tokens.token_account import GroupColumns, TokenAccount, account_of
from rl_sync.records.tokens.token_lives import TokenLives
from rl_sync.records.usage import MachineUse
from rl_sync.workdir import Workdir

LIVE, SILENT = "live", "silent"
"""States of a run that has not ended: it has written recently, or not."""

_SILENT_SECS = 120.0
_MOST_NEW_BYTES = 32 << 20


class RunRecords:
    """Reads the records in a work directory, also while the run goes on; it never writes.

    Links that lead out of the directory are not followed.

    Args:
      workdir: the directory.
      name: name for display; None for the directory's name.
      whole_spans: see `SpanLines`.

    Attributes:
      metrics, spans, flow, usage, token_lives, rollouts: the records that were read so far.
      restart_lines: the restarts that were read so far.
      until: last trainer step whose metrics and accuracy count; None for the last of the run.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], name: str | None = None, *, whole_spans: bool = True
    ):
        root = Path(os.path.abspath(workdir))
        self.workdir, self.name = Workdir(root), root.name if name is None else name
        self._root, self._lock = root, threading.Lock()
        self.metrics = MetricLines(root, root)
        self.spans = SpanLines(root, root, whole=whole_spans)
        self.flow = Flow(root, root)
        self.usage = MachineUse(root, root)
        self.token_lives = TokenLives(root, root)
        self.rollouts = RolloutIndex(root, root)
        self.restart_lines = RestartLines(root, root)
        self._lost = LostTimeWatch(self.restart_lines, self.spans)
        self.until: int | None = None
        self._config: tuple[int, JsonObject] = (0, {})
        self._summed: tuple[list[Span], RunSummary | None] = ([], None)
        self._history: tuple[list[JsonObject], int, list[alarms.Period]] = ([], 0, [])

    def refresh(self, *, rollouts: bool = True) -> int:
        """Reads new records, up to a limit; safe for several threads.

        Args:
          rollouts: whether to read records of rollouts, which are much larger than all others.

        Returns:
          The number of bytes that were read.
        """
        files = (self.restart_lines, self.metrics, self.spans, self.flow, self.usage)
        reads = [one.refresh for one in (*files, self.token_lives)]
        size = 0
        with self._lock:
            for read in [*reads, self.rollouts.refresh] if rollouts else reads:
                left = _MOST_NEW_BYTES
                while left > 0 and (more := read()):
                    left -= more
                size += _MOST_NEW_BYTES - left
        return size

    def read(self, *, rollouts: bool = True) -> None:
        """Reads all present records; see `refresh`."""
        while self.refresh(rollouts=rollouts):
            pass

    def images_of(self, rollout: Rollout) -> list[ShownImage]:
        """Reads the images of a prompt, for display."""
        return shown_images(self.workdir, rollout.images, self._root)

    @property
    def is_empty(self) -> bool:
        """True if the run has recorded nothing yet."""
        return not (self.metrics.lines or any(self.spans.by_role.values()) or self.flow.leased)

    # Settings.

    @property
    def config(self) -> JsonObject:
        """The settings of the run; empty if they cannot be read."""
        path = self.workdir.config
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return {}
        if changed != self._config[0]:
            self._config = (changed, read_object(path, self._root))
        return self._config[1]

    def setting(self, section: str, name: str) -> Any:
        """Returns a setting; None if the run does not have it."""
        found = self.config.get(section)
        return found.get(name) if isinstance(found, dict) else None

    @property
    def staleness_bound(self) -> int | None:
        """The maximum staleness that the schedule allows, in trainer steps; None if unknown."""
        names = ("interval", "offset", "max_staleness", "pull")
        try:
            values = {name: self.setting("sync", name) for name in names}
            return schedules.resolve(self.setting("sync", "mode"), **values).staleness_bound
        except (ValueError, TypeError):
            return None

    # Results.

    def up_to(self, step: int) -> RunRecords:
        """Returns the same records, with metrics and accuracy only up to a trainer step."""
        run = copy.copy(self)
        run.until = step
        return run

    def counted(self, phase: str) -> list[JsonObject]:
        """Returns those lines of a phase's metrics that count; see `until`."""
        lines = self.metrics.of_phase(phase)
        return [line for line in lines if self.until is None or line["step"] <= self.until]

    @property
    def steps(self) -> int:
        """The number of the run's last trainer step."""
        lines = self.metrics.of_phase(RL)
        return int(lines[-1]["step"]) if lines else 0

    def last(self, name: str) -> float | None:
        """Returns a metric of the last trainer step that counts; None if it has none."""
        lines = self.counted(RL)
        return as_number(lines[-1].get(name)) if lines else None

    @property
    def staleness_max(self) -> float | None:
        """The maximum staleness in the steps that count, in trainer steps."""
        found = [as_number(line.get("staleness_max")) for line in self.counted(RL)]
        return max((one for one in found if one is not None), default=None)

    @property
    def accuracies(self) -> list[tuple[int, MeasuredAccuracy]]:
        """Held-out accuracies that count, each with the trainer step before it; 0 before RL."""
        names = ("accuracy", "accuracy_low", "accuracy_high")
        found = [
            (int(line["step"]), [as_number(line.get(name)) for name in names])
            for line in self.counted(EVALUATION)
        ]
        return [
            (step, MeasuredAccuracy(value, low, high))
            for step, (value, low, high) in found
            if value is not None
        ]

    @property
    def accuracy_before(self) -> MeasuredAccuracy | None:
        """Held-out accuracy before the first trainer step."""
        return next((one for step, one in self.accuracies if not step), None)

    @property
    def accuracy_after(self) -> MeasuredAccuracy | None:
        """Last held-out accuracy that was measured after a trainer step."""
        return next((one for step, one in reversed(self.accuracies) if step), None)

    @property
    def accuracy_step(self) -> int | None:
        """The trainer step of `accuracy_after`."""
        return next((step for step, _ in reversed(self.accuracies) if step), None)

    # Alarms.

    @property
    def periods(self) -> list[alarms.Period]:
        """The alarms of the run, including those that hold now."""
        lines, limits = self.metrics.lines, self._limits
        if lines is not self._history[0] or len(lines) != self._history[1]:
            self._history = (lines, len(lines), alarms.history(lines, limits))
        restarted = alarms.raised(alarms.Evidence(limits, restarts=self.restart_lines.counts))
        last = self.last_step
        return [*self._history[2], *(alarms.Period(one, last, last) for one in restarted)]

    @property
    def last_step(self) -> int:
        """The last trainer step with metrics or with an evaluation; 0 if there is none."""
        return alarms.last_step(self.metrics.lines)

    @property
    def _limits(self) -> alarms.AlarmLimits:
        default, low = alarms.AlarmLimits(), self.setting("algorithm", "group_mean_low")
        return alarms.AlarmLimits(
            steps=self.setting("observe", "alarm_steps") or default.steps,
            group_size=self.setting("trainer", "group_size") or default.group_size,
            logprob_gap=self.setting("algorithm", "logprob_gap_alarm") or 0.0,
            group_mean_low=default.group_mean_low if low is None else low,
            follows_rewards=self.setting("algorithm", "advantage") != "none",
        )

    # Times.

    @property
    def period(self) -> tuple[float, float]:
        """The start of the first and the end of the last span, in Unix seconds; 0 without any."""
        every = [spans for spans in self.spans.by_role.values() if spans]
        if not every:
            return 0.0, 0.0
        return min(s[0].start_secs for s in every), max(s[-1].end_secs for s in every)

    @property
    def start_secs(self) -> float:
        """The time of the first record, in Unix seconds; 0 without any."""
        times = [float(line["time"]) for line in self.metrics.lines[:1] if line.get("time")]
        began = self.period[0]
        return min([*times, *([began] if began else [])], default=0.0)

    @property
    def last_secs(self) -> float:
        """The time of the newest record, in Unix seconds; 0 without any."""
        lines = self.metrics.lines
        told = float(lines[-1].get("time") or 0.0) if lines else 0.0
        return max(told, self.period[1], self.flow.now.secs)

    @property
    def secs(self) -> float | None:
        """The seconds that the run took until its last record; None without any."""
        return self.elapsed(self.last_secs) if self.start_secs else None

    def elapsed(self, at_secs: float) -> float:
        """Returns the seconds from the first record to a moment; those between attempts are none.

        Args:
          at_secs: Unix seconds.
        """
        return at_secs - self.start_secs - self.spans.away_secs(at_secs)

    @property
    def silent_secs(self) -> float:
        """The seconds since the newest record, including records of the machine's use."""
        return time.time() - max(self.last_secs, self.usage.last_secs)

    @property
    def left_secs(self) -> float | None:
        """The seconds that the remaining trainer steps take at the pace of the last ones."""
        steps, pace = self.setting("trainer", "steps"), Pace()
        for line in self.metrics.of_phase(RL):
            pace.note(int(line["step"]), float(line.get("time") or 0.0))
        if self.state != LIVE or not isinstance(steps, int):
            return None
        return pace.left_secs(steps, time.time())

    # The end.

    @property
    def outcome(self) -> RunOutcome | None:
        """The end of the run; None while it goes on, or if it was killed."""
        return read_outcome(self.workdir)

    @property
    def state(self) -> str:
        """`live` or `silent`; for a run that has ended `finished`, `stopped` or `failed`."""
        if (outcome := self.outcome) is None:
            return LIVE if self.silent_secs < _SILENT_SECS else SILENT
        if outcome.failed is not None:
            return "failed"
        return "finished" if outcome.stopped is None else "stopped"

    @property
    def summary(self) -> RunSummary | None:
        """The summary of the run's time; None without an RL phase."""
        spans = self.spans.joined
        if spans is not self._summed[0]:
            try:
                self._summed = (spans, summarize(spans, self.restart_lines.placed(self.spans)))
            except ValueError:
                self._summed = (spans, None)
        return self._summed[1]

    @property
    def tokens(self) -> TokenAccount:
        """The account of the generated tokens; see `account_of`."""
        told, flow = self.token_lives, self.flow
        sampled, fate = told.sampled.rows, flow.fate.of(np.arange(len(told.sampled.rows)))
        trained = [*flow.trained_tokens.values()]
        none = np.zeros(0, np.int64)
        used = np.concatenate([none, *(np.array(one.leases) for one in trained)])
        tokens = np.concatenate([none, *(np.array(one.tokens) for one in trained)])
        is_whole = told.sampled.of(used) >= 0
        columns = GroupColumns(
            sampled=sampled,
            greedy=told.greedy.rows,
            fate=np.where(sampled >= 0, fate, -1),
            fates=flow.fates,
            used=used[is_whole],
            used_tokens=tokens[is_whole],
        )
        return account_of(told.lives, columns, self.outcome is not None)

    @property
    def device_time(self) -> DeviceTime:
        """The time for which each role held devices, with its price."""
        ends = {
            role: [span.end_secs for span in spans] for role, spans in self.spans.by_role.items()
        }
        price = self.setting("observe", "price_per_device_hour") or 0.0
        return DeviceTime(device_secs(self.token_lives.lives, ends), price)

    @property
    def lost(self) -> LostTime:
        """The time that the run has lost since its first rollout, as roles died."""
        return self._lost.now()

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Returns sizes and times of the files, which change when there is something new."""
        return tuple(_sizes(self.workdir))


def _sizes(at: Workdir) -> Iterator[tuple[int, int]]:
    last_part = [part.path for part in parts(at)][-1:]
    paths = [at.outcome, at.metrics, at.ledger, at.consumed, at.restarts, at.config, *last_part]
    folders = (at.spans, at.usage, at.tokens)
    for path in [*paths, *(one for of in folders for one in sorted(of.glob("*.jsonl")))]:
        try:
            found = path.stat()
            yield found.st_size, found.st_mtime_ns
        except OSError:
            yield 0, 0


def open_runs(workdirs: Sequence[str | os.PathLike[str]]) -> list[RunRecords]:
    """Makes readers of several work directories, with distinct names."""
    paths = [Path(os.path.abspath(workdir)) for workdir in workdirs]
    names = [path.name for path in paths]
    return [
        RunRecords(path, name if names.count(name) == 1 else f"{path.parent.name}/{name}")
        for path, name in zip(paths, names, strict=True)
    ]
