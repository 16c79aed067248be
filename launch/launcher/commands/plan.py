"""`plan`: prints the schedule, memory and programs of a run, each once it is computed."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rl_sync.launcher import config_file
from rl_sync.launcher.command import Arguments, Flags

if TYPE_CHECKING:
    from rl_sync.settings.run_settings import RunSettings
    from rl_sync.tasks.task import Task


def execute(arguments: Arguments) -> int:
    """Prints the plan of a run, which is not started.

    An interrupted compilation ends the process; what is known by then was printed.

    Raises:
      ConfigError: the config is invalid, or a target does not exist.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator, so leave it free.
    from rl_sync.launcher.processes import run_directory
    from rl_sync.plan.targets import target
    from rl_sync.roles.assembly import wiring
    from rl_sync.roles.teaching.teacher_models import teacher_models
    from rl_sync.roles.trainer.experience_pipeline import pipeline_of
    from rl_sync.settings.config_reading import read_settings

    assert arguments.config is not None
    flags = arguments.flags
    settings = run_directory.settings_of(arguments.config.to_dict())
    task = wiring.load_task(settings)
    wiring.check_reward(task)
    teacher_models(settings, task)
    pipeline_of(settings.experience.pipeline, task)
    texts = _texts(settings, task, flags)
    if "compile" in flags:
        target(flags["compile"]).devices()  # Errors come before output.
    for number, text in enumerate(texts):
        print("\n" * (number > 0) + text(), flush=True)
    if "compile" in flags:
        print()
        # The target decides whether roles share a device, and not this machine.
        placed = read_settings({**arguments.config.to_dict(), "workdir": settings.workdir}).launch
        _compile(dataclasses.replace(settings, launch=placed), task, flags["compile"])
    return 0


def _texts(settings: RunSettings, task: Task, flags: Flags) -> list[Callable[[], str]]:
    """Returns the parts of a plan that need no compilation, as functions; checks the flags."""
    from rl_sync.launcher import what_if
    from rl_sync.plan.compile_text import describe_programs
    from rl_sync.plan.memory.memory_text import describe_memory
    from rl_sync.plan.schedule_text import describe
    from rl_sync.plan.targets import target
    from rl_sync.settings.records import ConfigError

    texts = [
        lambda: describe(settings),
        task.describe,
        lambda: describe_memory(settings, task),
        lambda: describe_programs(settings, task),
    ]
    if settings.environment.name is None:
        texts.insert(2, task.describe_prompt)
    if judging := _judging(settings, task):
        texts.insert(2, lambda: judging)
    if "network" in flags and "workdir" not in flags:
        raise ConfigError(
            f"--network={flags['network']} needs --workdir=RUN, the run whose times it is added to."
        )
    if "workdir" in flags:
        from rl_sync.plan.pace_text import describe_predicted

        # Errors come before output.
        link = what_if.network(flags["network"]) if "network" in flags else None
        workdir = flags["workdir"]
        predicted = describe_predicted(settings, workdir, _measured(workdir), link)
        texts.append(lambda: predicted)
    if "find" in flags:
        from rl_sync.plan.mesh_search import describe_found

        target(flags["find"])
        texts.append(lambda: describe_found(settings, task, flags["find"]))
    return texts


def _compile(settings: RunSettings, task: Task, chips: str) -> None:
    """Compiles the programs for absent chips, and prints what each takes."""
    from rl_sync.plan.compile_progress import CompilingInterruptedError
    from rl_sync.plan.compile_text import describe_compiled

    try:
        for line in describe_compiled(settings, task, chips):
            print(line, flush=True)
    except CompilingInterruptedError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGINT)  # Nothing else ends the compiler's threads.


def _measured(workdir: str) -> RunSettings:
    """Returns the settings of the run whose times are used."""
    from rl_sync.launcher.commands.report import check_run
    from rl_sync.settings.config_reading import read_settings

    check_run(workdir, f"--workdir={workdir}")
    return read_settings(config_file.of_run(Path(workdir)).to_dict())


def _judging(settings: RunSettings, task: Task) -> str:
    """Describes problems that this machine cannot judge; the run may use another machine."""
    from rl_sync.roles.assembly import wiring
    from rl_sync.settings.records import ConfigError

    try:
        return "\n".join(wiring.try_reward(settings, task))
    except ConfigError as error:
        return f"Judging here: {error}"
