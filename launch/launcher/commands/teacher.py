"""`teacher`: runs a teacher server on the devices of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping

from rl_sync.algorithms.algorithm import TOPK
from rl_sync.cluster import compilation_cache
from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands.serving import end_asked, serving_place
from rl_sync.role_names import TRAINER
from rl_sync.roles.assembly import gpu_flags, wiring
from rl_sync.roles.teaching.teacher_server import TeacherModel, TeacherServer
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues, require
from rl_sync.settings.run_settings import RunSettings


def execute(arguments: Arguments) -> int:
    """Serves the teacher of a config until SIGTERM or Ctrl-C; returns the exit status.

    Raises:
      ConfigError: there is no such teacher, it has another vocabulary than the config's policy, the
        address cannot be used, or there is no secret.
    """
    assert arguments.config is not None
    flags = arguments.flags
    settings = served_settings(arguments.config.to_dict())
    secret_path = flags.get("secret-path") or settings.teacher.secret_path
    place = serving_place(flags.get("host"), flags.get("port", 0), secret_path, kind="teacher")
    gpu_flags.choose(settings.compute_dtype, False, os.environ)
    compilation_cache.use(settings.launch.compilation_cache, os.environ)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    task = wiring.load_task(settings)
    teacher = TeacherModel.loaded(settings, task, wiring.own_layout(settings, TRAINER))
    try:
        server = TeacherServer(teacher, host=place.host, port=place.port, secret=place.secret)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with contextlib.closing(server):
        asked = end_asked()
        print(f"Teacher: {teacher.description.name}, secret: {place.path}")
        print(f"Serving at {server.address}; Ctrl-C ends it.", flush=True)
        asked.wait()
    print("The teacher server has ended.")
    return 0


def served_settings(config: ConfigValues) -> RunSettings:
    """Reads the settings of a server from a run's config, which may name a teacher server itself.

    Raises:
      ConfigError: a setting is invalid, or none names a teacher.
    """
    teacher, algorithm = _section(config, "teacher"), _section(config, "algorithm")
    require(
        teacher.get("path") is not None and teacher.get("sets") is None,
        "A teacher server has one teacher: give --config.teacher.path=PATH, a checkpoint or the"
        " work directory of a run, and no teacher.sets.",
    )
    return read_settings(
        {
            **config,
            "workdir": config.get("workdir") or "",
            "teacher": {**teacher, "address": None},
            # Runs say in their calls how they compare.
            "algorithm": {**algorithm, "distillation": TOPK},
        }
    )


def _section(config: ConfigValues, name: str) -> Mapping[str, object]:
    section = config[name]
    assert isinstance(section, Mapping)
    return section
