"""`render`: writes the files that start a run on a cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from rl_sync.launcher.command import Arguments
from rl_sync.settings.records import ConfigError


def execute(arguments: Arguments) -> int:
    """Writes the files, and prints their names and the commands that submit them.

    Raises:
      ConfigError: the config is invalid, the run does not fit the machines, or a file exists.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")  # Nothing is computed on devices.
    from rl_sync.addons.clusters.cluster_job import ClusterJob
    from rl_sync.addons.clusters.engine_table import ENGINES

    assert arguments.config is not None
    flags = arguments.flags
    engine = ENGINES[flags["to"]]
    _check_flags(flags["to"], flags)
    if "check" in flags and shutil.which(engine.check[0]) is None:
        raise ConfigError(
            f"--check: no {engine.check[0]} on the path. Run this {engine.place}, or leave out"
            " --check."
        )
    job = ClusterJob.of(arguments.settings, arguments.config.to_dict(), flags)
    rendered = engine.render(job)
    paths = _write(rendered.files, Path(flags.get("out", "")), bool(flags.get("overwrite")))
    for path in paths:
        print(path)
    quoted = [shlex.quote(str(path)) for path in paths]
    print("\nStart it with", *(_filled(one, quoted) for one in rendered.submit), sep="\n  ")
    if "check" not in flags:
        return 0
    return _check([*engine.check, str(paths[0])])


def _filled(command: str, paths: Iterable[str]) -> str:
    """Returns a command with the paths of files in place of `{0}`, `{1}`, …."""
    for number, path in enumerate(paths):
        command = command.replace(f"{{{number}}}", path)
    return command


def _check_flags(name: str, flags: Iterable[str]) -> None:
    """Refuses flags that are for other engines."""
    from rl_sync.addons.clusters.engine_table import COMMON, ENGINES

    own = ENGINES[name].flags
    for flag in flags:
        if flag not in (*own, *COMMON):
            users = " and ".join(f"--to={one}" for one, it in ENGINES.items() if flag in it.flags)
            takes = ", ".join(f"--{one}" for one in own)
            raise ConfigError(f"--{flag} is for {users}, not for --to={name}, which takes {takes}.")


def _write(files: Mapping[str, str], folder: Path, overwrite: bool) -> list[Path]:
    """Writes files, unless one of them exists; returns their paths."""
    paths = [folder / name for name in files]
    there = next((path for path in paths if os.path.lexists(path)), None)
    if there is not None and not overwrite:
        raise ConfigError(
            f"{there} exists: --overwrite replaces it, --out=DIRECTORY writes elsewhere."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}. Give another --out."
        ) from error
    return paths


def _check(words: list[str]) -> int:
    """Has the cluster check a file; returns 0 if it takes it, else 1."""
    print(f"\n{shlex.join(words)}", flush=True)
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout.rstrip() or f"no output; exit status {done.returncode}")
    return 0 if done.returncode == 0 else 1
