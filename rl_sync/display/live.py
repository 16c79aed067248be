"""Displays a run live: a line for each role on a terminal, some plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.display.unprintable import escaped
from rl_sync.messages.run_status import RoleStatus, RunStatus
from rl_sync.records.spans import SYNC_KINDS, SpanKind
from rl_sync.role_names import is_explorer

PLAIN_EVERY_SECS = 10.0


def describe_activity(role: RoleStatus) -> str:
    """Describes a role's state: "rollout e7", "evaluation 64/500", "waits for weights 3.2 s"."""
    if role.waits_for is not None:
        return f"waits for {role.waits_for} {role.since_secs:.1f} s"
    look = SPAN_STYLES.get(role.activity)
    name = role.activity if look is None else look.words
    if role.step is not None and role.activity in ("rollout", "score", "insert", "train"):
        return f"{name} {'e' if is_explorer(role.role) else 't'}{role.step}"
    if role.version is not None and role.activity in SYNC_KINDS:
        return f"{name} v{role.version}"
    if role.done is not None:
        return f"{name} {role.done}" if role.of is None else f"{name} {role.done}/{role.of}"
    return name


def _style(role: RoleStatus) -> str:
    look = SPAN_STYLES.get(SpanKind.WAIT if role.waits_for is not None else role.activity)
    return "" if look is None else look.style


def plain_line(status: RunStatus) -> str:
    """Writes the status on one line, for logs."""
    progress = f"{status.phase} {status.step}/{status.steps}{_loss(status)}"
    parts = [f"[{_clock(status.elapsed_secs)}] {progress}{_left(status, ', ')}"]
    for role in status.roles:
        numbers = [describe_activity(role)]
        numbers += [f"v{role.version}"] if role.version is not None else []
        numbers += [f"reward {role.reward:.3f}"] if role.reward is not None else []
        if role.tokens_per_sec is not None:
            numbers.append(f"{role.tokens_per_sec:,.0f} tokens/s")
        numbers += [f"staleness {role.staleness:.1f}"] if role.staleness is not None else []
        parts.append(f"{role.role}: {', '.join(numbers)}")
    if status.buffer_size is not None:
        parts.append(f"buffer: {_fill(status)}")
    if status.message:
        parts.append(status.message)
    return " | ".join(parts)


def render(status: RunStatus) -> RenderableType:
    """Lays the status out for rich: a heading, a line a role, the buffer, a message, alarms."""
    heading = Table.grid(padding=(0, 2))
    heading.add_row(
        Text(status.phase, style="bold"),
        ProgressBar(total=max(status.steps, 1), completed=status.step, width=30),
        f"step {status.step}/{status.steps}{_loss(status)}",
        f"{_clock(status.elapsed_secs)}{_left(status, '  ')}",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("role", no_wrap=True)
    table.add_column("state", min_width=34, no_wrap=True)
    for name in ("step", "version", "reward", "tokens/s", "staleness"):
        table.add_column(name, justify="right", no_wrap=True)
    for role in status.roles:
        table.add_row(
            role.role,
            Text(describe_activity(role), style=_style(role)),
            _number(role.step, "d"),
            _number(role.version, "d"),
            _number(role.reward, ".3f"),
            _number(role.tokens_per_sec, ",.0f"),
            _number(role.staleness, ".1f"),
        )
    if status.buffer_size is not None:
        table.add_row("buffer", Text(_fill(status), style="blue"))
    lines: list[RenderableType] = [heading, table]
    if status.message:
        lines.append(Text(status.message, style="italic"))
    lines += [Text(f"ALARM: {alarm.text}", style="bold red") for alarm in status.alarms]
    lines += [Text(f"  {escaped(one)}", style="dim") for one in status.examples]
    return Group(*lines)


class LiveDisplay:
    """Shows a run while it runs: a context manager with `update`.

    On a terminal the lines are redrawn in place, and the last ones stay. Elsewhere a plain line is
    printed at most every `plain_every_secs`, or immediately when the phase or the message changes.
    There, an alarm is printed when it is raised.
    """

    def __init__(
        self,
        console: Console | None = None,
        plain_every_secs: float = PLAIN_EVERY_SECS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = console or Console()
        self._plain_every_secs = plain_every_secs
        self._clock = clock
        self._live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        )
        self._printed_secs = 0.0
        self._printed: RunStatus | None = None
        self._latest: RunStatus | None = None
        self._raised: set[str] = set()

    def __enter__(self) -> LiveDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._latest is not None and self._latest != self._printed:
            self._print(self._latest)

    def update(self, status: RunStatus) -> None:
        """Shows a newer status."""
        self._latest = status
        if self._live is not None:
            self._live.update(render(status))
            return
        self._warn(status)
        due = self._clock() - self._printed_secs >= self._plain_every_secs
        before = self._printed
        if (
            before is None
            or due
            or (before.phase, before.message) != (status.phase, status.message)
        ):
            self._print(status)

    def _warn(self, status: RunStatus) -> None:
        """Prints alarms that were not there before, with their examples."""
        new = [alarm for alarm in status.alarms if alarm.name not in self._raised]
        self._raised = {alarm.name for alarm in status.alarms}
        lines = [f"ALARM: {alarm.text}" for alarm in new]
        lines += [f"  {escaped(one)}" for one in status.examples if new]
        for line in lines:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _print(self, status: RunStatus) -> None:
        self.console.print(plain_line(status), soft_wrap=True, markup=False, highlight=False)
        self._printed_secs, self._printed = self._clock(), status


def _clock(secs: float) -> str:
    minutes, rest = divmod(int(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _left(status: RunStatus, before: str) -> str:
    return "" if status.left_secs is None else f"{before}{_clock(status.left_secs)} left"


def _loss(status: RunStatus) -> str:
    return "" if status.loss is None else f", loss {status.loss:.3g}"


def _fill(status: RunStatus) -> str:
    of = "" if status.buffer_capacity is None else f" of {status.buffer_capacity}"
    return f"{status.buffer_size}{of} groups"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
