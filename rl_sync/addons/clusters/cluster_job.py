"""A run that is to start on several machines: its settings, its command line, and its files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from rl_sync.addons.clusters.node_placement import PlacedProcess, processes_of
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

PORT = 29_400
"""Port at which machines join a run, unless `--port` names another one."""

SECRET = "RL_SYNC_SECRET"
"""Environment variable with the secret of a run, which all of its machines must have."""

MAKE_SECRET = "import secrets; print(secrets.token_hex(32))"
"""Python program that prints a new secret."""

_OWN = ("workdir", "launch.host", "launch.hosts", "launch.port")
"""Settings that the rendered command lines give."""

_LONGEST_NAME = 36
"""Maximum length of a job's name: Kubernetes adds parts, and takes 63 characters."""


class Rendered(NamedTuple):
    """The files that start a run.

    Attributes:
      files: texts by file name; the first is the one to submit.
      submit: commands that submit it, with `{0}` for the path of each file, by position.
    """

    files: Mapping[str, str]
    submit: Sequence[str]


@dataclasses.dataclass(frozen=True)
class ClusterJob:
    """A run that is to be started on a cluster.

    Attributes:
      config: the config as the user named it.
      changes: changed settings, as `--config.NAME=VALUE`.
      values: the whole config.
      flags: values of the flags of `render`.
      directory: the current directory.
    """

    config: str
    changes: tuple[str, ...]
    values: Mapping[str, Any]
    flags: Mapping[str, Any]
    directory: Path

    @classmethod
    def of(
        cls, given: Sequence[str], values: Mapping[str, Any], flags: Mapping[str, Any]
    ) -> ClusterJob:
        """Makes a job from the words of a command line that name the config and change settings.

        Raises:
          ConfigError: the config puts all roles into one process, or sets the machines itself.
        """
        config = next(word for word in given if word.startswith("--config="))
        changes = tuple(
            word
            for word in given
            if word != config and word.partition("=")[0] not in [f"--config.{one}" for one in _OWN]
        )
        launch = values["launch"]
        if launch["colocate"]:
            raise ConfigError(
                "launch.colocate=true runs all roles in one process, so there is nothing to place:"
                " start the launcher itself on one machine, or set launch.colocate=false."
            )
        if launch["host"] or launch["hosts"]:
            name = "launch.hosts" if launch["hosts"] else "launch.host"
            raise ConfigError(
                f"{name}={launch['hosts'] or launch['host']}: `render` sets launch.host and"
                " launch.hosts itself, so leave them out."
            )
        return cls(config.partition("=")[2], changes, values, flags, Path.cwd())

    @property
    def name(self) -> str:
        """Name of the job: the run's, as a letter and then small letters, digits and hyphens."""
        name = re.sub(r"[^a-z0-9]+", "-", str(self.values["name"]).lower()).strip("-")
        name = name if name[:1].isalpha() else f"run-{name}"
        return name[:_LONGEST_NAME].strip("-")

    @property
    def workdir(self) -> Path:
        """Absolute path of the work directory, which is the same after each start."""
        given = self.values["workdir"] or f"runs/{self.name}"
        return Path(os.path.abspath(os.path.expanduser(given)))

    @property
    def port(self) -> int:
        """Port at which machines join."""
        return int(self.flags.get("port", PORT))

    @property
    def program(self) -> str:
        """Words that start the launcher in the current directory."""
        return f"python -m {'launcher' if self.in_clone else 'rl_sync'}"

    @property
    def in_clone(self) -> bool:
        """True if the current directory is a clone of the repository."""
        return Path(self.directory, "launch", "launcher").is_dir()

    def settings(self, host: str, hosts: Mapping[str, str]) -> RunSettings:
        """Returns the settings with the machines of some processes.

        Args:
          host: address of the launcher's machine.
          hosts: address of each process on another machine.

        Raises:
          ConfigError: the config is invalid, or does not fit several machines.
        """
        machines = {"host": host, "hosts": _pairs(hosts)} if hosts else {}
        launch = {**self.values["launch"], **machines}
        return read_settings({**self.values, "workdir": str(self.workdir), "launch": launch})

    @property
    def processes(self) -> list[PlacedProcess]:
        """All processes of the run that compute, the trainer's first."""
        return processes_of(self.settings("", {}))

    def joined(self) -> RunSettings:
        """Returns the settings of a run whose processes all join it.

        Raises:
          ConfigError: the config is invalid, or does not fit several machines.
        """
        return self.settings("auto", {one.name: "join" for one in self.processes})

    @property
    def all_joining(self) -> str:
        """Value of `launch.hosts` where all processes join the run."""
        return _pairs({one.name: "join" for one in self.processes})

    def starting_words(self, host: str, hosts: Mapping[str, str]) -> list[str]:
        """Returns the launcher's arguments where it starts processes on other machines itself."""
        machines = [f"--config.launch.host={host}", f"--config.launch.hosts={_pairs(hosts)}"]
        own = [f"--config={self.config}", *self.changes, f"--config.workdir={self.workdir}"]
        return [*own, *(machines if hosts else [])]

    def config_inside(self) -> str:
        """Returns the config's path in a copy of the current directory.

        Raises:
          ConfigError: the config's file is elsewhere.
        """
        path, colon, argument = self.config.partition(":")
        if not os.path.isfile(os.path.expanduser(path)):
            return self.config  # A config of the package, by name.
        inside = os.path.relpath(os.path.realpath(os.path.expanduser(path)), self.directory)
        if inside.startswith(os.pardir):
            raise ConfigError(
                f"--config={self.config} is outside the current directory, whose files alone reach"
                " the cluster: copy it into this directory, or change to the directory that has it."
            )
        return f"{inside}{colon}{argument}"


def _pairs(hosts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={address}" for name, address in hosts.items())


def rendered_text(template: str, **values: object) -> str:
    """Fills in a template of this package. The filters `sh` and `yaml` quote a value."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rl_sync.addons.clusters", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"sh": lambda value: shlex.quote(str(value)), "yaml": _as_yaml}
    return environment.get_template(template).render(values)


def _as_yaml(value: object) -> str:
    """Writes a value in YAML's flow style, which JSON is."""
    return json.dumps(value, ensure_ascii=False)
