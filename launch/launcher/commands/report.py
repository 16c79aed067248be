"""`report`: writes a self-contained HTML page about a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rl_sync.configs import base
from rl_sync.launcher.command import Arguments, Flags
from rl_sync.plan.schedule_text import describe
from rl_sync.records.run_records import RunRecords
from rl_sync.setting import flat
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues, read_config
from rl_sync.workdir import Workdir

_FILE = "report.html"

_PLACE = ("name", "workdir")
"""Settings that do not influence a run."""

_LEADING = ("sync.mode", "algorithm.name")
"""Settings that determine the defaults of others."""


def execute(arguments: Arguments) -> int:
    """Writes the page; see `write`."""
    return write(arguments.flags)


def write(flags: Flags) -> int:
    """Writes the page, prints its path, and returns the exit status.

    Raises:
      ConfigError: a flag is invalid, the run has no records, or the page cannot be written.
    """
    workdir = flags["workdir"]
    check_run(workdir, f"--workdir={workdir}")
    from rl_sync.page.report_page import render

    run = RunRecords(workdir)
    run.read()
    if run.is_empty:
        raise ConfigError(f"The run in {workdir} has recorded nothing yet. Wait a little.")
    config = _config(workdir)
    page = render(run, _changes(config), _plan(config))
    out = Path(flags.get("out") or Path(workdir, _FILE))
    write_page(out / _FILE if out.is_dir() else out, page)
    return 0


def check_run(workdir: str, named: str) -> None:
    """Refuses a directory that is not the work directory of a run.

    Args:
      named: the directory's name in the message.

    Raises:
      ConfigError: the directory is refused.
    """
    at = Workdir(workdir)
    if not os.path.isdir(workdir):
        raise ConfigError(f"{named} is not a directory.")
    if not any(path.exists() for path in (at.config, at.metrics, at.spans, at.ledger)):
        raise ConfigError(
            f"{named} is not the work directory of a run: it has no config.json and no records."
        )


def write_page(path: Path, page: str | bytes, quiet: bool = False) -> None:
    """Writes a page or a picture.

    Args:
      quiet: whether to leave its path unprinted.

    Raises:
      ConfigError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        if isinstance(page, str):
            page = page.encode("utf-8", errors="backslashreplace")
        temporary.write_bytes(page)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}. Give another --out."
        ) from error
    if not quiet:
        print(path)


def _config(workdir: str) -> ConfigValues:
    """The config of a run; empty if it cannot be read."""
    try:
        return read_config(Workdir(workdir).config)
    except (FileNotFoundError, ConfigError):
        return {}


def _changes(config: ConfigValues) -> list[tuple[str, str]] | None:
    """Returns the settings that differ from the defaults, or None for another version's config."""
    try:
        return [(name, str(value)) for name, value in deviations(config).items()]
    except ValueError:
        return None


def _plan(config: ConfigValues) -> str:
    """Returns the schedule in words and as a drawing; empty for another version's config."""
    try:
        return describe(read_settings(config))
    except ValueError:
        return ""


def deviations(config: ConfigValues) -> ConfigValues:
    """Returns the settings of a resolved config that differ from the defaults, by name.

    Raises:
      ConfigError: the defaults with this mode and this algorithm are not valid.
    """
    given, default = dict(flat(config)), base.get_config()
    led = {name: given[name] for name in _LEADING if given.get(name) is not None}
    with default.unlocked():
        default.update_from_flattened_dict({**led, "workdir": ""})
    usual = dict(flat(json.loads(json.dumps(read_settings(default.to_dict()).resolved()))))
    found = {name: led[name] for name in led}
    for name in given.keys() & usual.keys() - led.keys() - {*_PLACE}:
        if json.dumps(given[name]) != json.dumps(usual[name]):
            found[name] = given[name]
    return dict(sorted(found.items()))
