"""`chaos`: makes a run while its processes are killed at random, and audits its records."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator

from rl_sync.checkpoints.audit import audit
from rl_sync.cluster.topology import members_of
from rl_sync.launcher.command import Arguments, Flags
from rl_sync.launcher.commands import run
from rl_sync.launcher.processes.disturbance import (
    KILL,
    KINDS,
    WINDOWS,
    Disturbance,
    DisturbancePlan,
    windows_open,
)
from rl_sync.launcher.processes.run_directory import settings_of
from rl_sync.launcher.processes.run_processes import RunFailedError
from rl_sync.records.run_records import RunRecords
from rl_sync.role_names import MASTER
from rl_sync.roles.restart_policy import REPLAY
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

_FAILED = 1
_EVERY_SECS, _LEAST_SECS, _MANY = 30.0, 0.1, 1_000_000


def execute(arguments: Arguments) -> int:
    """Makes a disturbed run; returns 0 if it ended well and its records are whole.

    With exact pulls, `--compare` makes an undisturbed run beside it, whose digest must be the same.

    Raises:
      ConfigError: the config or a flag is invalid.
    """
    assert arguments.config is not None
    config = arguments.config.to_dict()
    settings, compares = settings_of(config), bool(arguments.flags.get("compare"))
    plan = planned(settings, arguments.flags)
    if compares and settings.schedule.pull != "exact":
        raise ConfigError(
            f"--compare needs a mode with exact pulls: under sync.mode={settings.sync.mode} two"
            " runs are not the same."
        )
    config["workdir"] = settings.workdir
    config["launch"]["restarts"] = max(config["launch"]["restarts"], _MANY)
    made: list[Disturbance] = []

    @contextlib.contextmanager
    def beside(one: run.LocalRun) -> Iterator[None]:
        disturbance = Disturbance(Workdir(settings.workdir), lambda: victims(one), plan)
        made.append(disturbance)
        with disturbance:
            yield

    try:
        with windows_open() if plan.windows else contextlib.nullcontext():
            status = run.start(config, beside)
    except RunFailedError as error:
        print(f"\nThe run failed: {error}", file=sys.stderr)
        return _FAILED
    count = sum(len(one.made) for one in made)
    faults = audit(settings, settings.workdir)
    if compares and not status:
        faults += _compared(config, settings.workdir)
    print(f"\n{count} disturbances; {_effective(settings.workdir)}")
    for fault in faults:
        print(f"FAULT: {fault}")
    if not faults:
        print("All records are whole.")
    return status or (_FAILED if faults else 0)


def planned(settings: RunSettings, flags: Flags) -> DisturbancePlan:
    """Reads the plan of a run's disturbances from the command's flags.

    Raises:
      ConfigError: a flag is invalid.
    """
    kinds = tuple(flags.get("kinds", KILL).split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"--kinds={unknown[0]} is not one of {', '.join(KINDS)}.")
    roles = tuple(name for name in flags.get("roles", "").split(",") if name)
    known = (*(member.name for member in members_of(settings)), MASTER, REPLAY)
    if unknown := [name for name in roles if name not in known]:
        raise ConfigError(
            f"--roles={unknown[0]} is not a process of this run, which has {', '.join(known)}."
        )
    every_secs = flags.get("every", _EVERY_SECS)
    if not _LEAST_SECS <= every_secs < math.inf:
        raise ConfigError(f"--every={every_secs:g} must be at least {_LEAST_SECS:g} seconds.")
    windows = tuple(name for name in flags.get("windows", "").split(",") if name)
    if unknown := [name for name in windows if name not in WINDOWS]:
        raise ConfigError(f"--windows={unknown[0]} is not one of {', '.join(WINDOWS)}.")
    return DisturbancePlan(flags.get("seed", 0), every_secs, kinds, roles, windows)


def victims(one: run.LocalRun) -> dict[str, int]:
    """Returns the processes that may be disturbed: none before a restart of each can follow."""
    return one.processes() if one.has_begun else {}


def _compared(config: ConfigValues, workdir: str) -> list[str]:
    """Makes the same run undisturbed; returns a fault if it comes to other parameters."""
    beside = f"{workdir}-undisturbed"
    run.start({**config, "workdir": beside})
    disturbed, undisturbed = _digest(workdir), _digest(beside)
    if disturbed == undisturbed:
        print(f"\nThe undisturbed run has the same digest, {undisturbed}.")
        return []
    return [f"The digest is {disturbed}, and {undisturbed} of the undisturbed run."]


def _digest(workdir: str) -> str | None:
    found: str | None = json.loads(Workdir(workdir).outcome.read_text())["digest"]
    return found


def _effective(workdir: str) -> str:
    records = RunRecords(workdir)
    records.read(rollouts=False)
    summary = records.summary
    if summary is None:
        return "there was no RL phase"
    return f"{summary.lost.effective_share:.1%} of the time led to steps that count"
