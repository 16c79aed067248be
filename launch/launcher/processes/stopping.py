"""Stopping of a run: the wait for the trainer, and the report of lost steps."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from rl_sync.cluster.stop_progress import StopProgress, trainer_of
from rl_sync.cluster.topology import members_of
from rl_sync.display.live import describe_activity
from rl_sync.launcher.command import program
from rl_sync.launcher.processes.run_directory import counted_step, saved
from rl_sync.launcher.processes.supervisor import Supervisor
from rl_sync.messages.run_status import RunStatus
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import TOGETHER, TRAINER
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

SAVERS = (TRAINER, TOGETHER)
"""The programs that save the trainer's state."""

_SFT, _START = "sft", "start"  # The trainer's names of phases.
_TELL_SECS = 10.0
_LOOK_SECS = 0.1
_QUIET_SECS, _END_SECS = 2.0, 2.0


def await_end(
    settings: RunSettings,
    supervisor: Supervisor,
    status: Callable[[], RunStatus | None],
    is_interrupted: Callable[[], bool],
    most_secs: float,
) -> str:
    """Waits for roles that were asked to save and end, and reports the trainer's activity.

    Args:
      is_interrupted: returns whether the user wants to end the wait.
      most_secs: see `StopProgress`.

    Returns:
      The reason why the wait ended early; empty if all roles have ended.
    """
    roles = [member.name for member in members_of(settings)]
    stop_secs = settings.launch.stop_secs
    movement, told = StopProgress(most_secs), time.monotonic()
    while living := supervisor.wait(roles, _LOOK_SECS):
        now = status()
        movement.see(now)
        if is_interrupted():
            return "interrupted again"
        if movement.still_secs > stop_secs:
            return (
                f"{', '.join(living)} cannot be stopped cleanly: no progress has been made for"
                f" {movement.still_secs:.0f} s (launch.stop_secs={stop_secs:g})"
            )
        if time.monotonic() - told > _TELL_SECS and supervisor.living(SAVERS):
            print(under_way(now), flush=True)
            told = time.monotonic()
    return ""


def await_backends(settings: RunSettings, supervisor: Supervisor, signals: Sequence[int]) -> None:
    """Waits until the master has sent the last metrics to all backends.

    Args:
      signals: the signals that the user has sent; a new one ends the wait.
    """
    names, most_secs = settings.observe.chosen_backends, settings.observe.finish_secs
    before, started, is_told = len(signals), time.monotonic(), False
    if not names:
        return
    # The master gives up on its backends after this time, and then takes a moment to end.
    while (waited := time.monotonic() - started) < most_secs + _END_SECS:
        if len(signals) > before or not supervisor.wait(["master"], _LOOK_SECS):
            return
        if waited > _QUIET_SECS and not is_told:
            is_told = True
            print(
                f"Waiting for {' and '.join(names)} to take the last metrics, at most"
                f" {most_secs:g} s. Ctrl-C ends the wait.",
                flush=True,
            )


def is_nothing_new(status: RunStatus | None) -> bool:
    """Says whether a run is so young that there is nothing to save."""
    if status is None or status.phase == _START:
        return True
    return status.phase == _SFT and status.step == 0


def under_way(status: RunStatus | None) -> str:
    """Describes what the trainer does before its last snapshot is saved, in a line."""
    trainer = trainer_of(status)
    if trainer is None:
        return "trainer: no status"
    doing = f"trainer: {describe_activity(trainer)}"
    if trainer.waits_for is not None:
        return f"{doing}; then it saves a snapshot"
    if trainer.activity == SpanKind.SNAPSHOT:
        return f"trainer: saves a snapshot, {trainer.since_secs:.0f} s"
    return f"{doing}, {trainer.since_secs:.0f} s; then it saves a snapshot"


def lost(settings: RunSettings, status: RunStatus | None) -> str:
    """Describes the steps of a run that no snapshot holds; empty if there are none."""
    if status is None or is_nothing_new(status):
        return ""
    sft_step, step = saved(Workdir(settings.workdir))
    if status.phase == _SFT:
        first = (sft_step or 0) + 1
        return _steps("SFT step", first, status.step)
    trainer, last = trainer_of(status), status.step
    if trainer is not None and trainer.activity == SpanKind.TRAIN:
        last = max(last, trainer.step or 0)  # It is in progress.
    trained = _steps("trainer step", (step or 0) + 1, last)
    if step is not None or not settings.sft.steps:
        return trained
    rest = "the rest of SFT" if sft_step else "SFT"
    return f"{rest} and {trained}" if trained else rest


def _steps(name: str, first: int, last: int) -> str:
    if last < first:
        return ""
    return f"{name} {first}" if first == last else f"{name}s {first} to {last}"


def how_to_go_on(settings: RunSettings, status: RunStatus | None = None) -> str:
    """Describes how to resume a run that ended early, and the steps that are lost.

    Args:
      status: its last known status.
    """
    workdir = shlex.quote(settings.workdir)
    resume = f"{program()} resume --workdir={workdir}"
    trained = counted_step(Workdir(settings.workdir), settings)
    if trained is not None:
        return f"To go on from trainer step {trained}, run: {resume}"
    sft_step, step = saved(Workdir(settings.workdir))
    missing = lost(settings, status)
    told = f"Lost, since no snapshot holds it: {missing}.\n" if missing else ""
    if step is not None or sft_step is not None:
        where = f"SFT step {sft_step}" if step is None else f"trainer step {step}"
        return f"{told}To go on from {where}, run: {resume}"
    what = "saved" if missing else "trained"
    return (
        f"{told}Nothing was {what} yet, so there is nothing to go on from: the same command with"
        f" --config.workdir={workdir} starts anew."
    )
