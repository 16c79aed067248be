"""Rules about one setting; the others rely on them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import string
from collections.abc import Sequence

from rl_sync.algorithms.algorithm import CORRECTIONS, PUBLISHED_CORRECTIONS
from rl_sync.environments.environment_catalog import ENVIRONMENTS, is_own
from rl_sync.environments.opponents import is_scripted, parse_opponent
from rl_sync.models.config import Lora
from rl_sync.models.mesh_shape import MESH_AXES
from rl_sync.records.backends.backend_catalog import BACKENDS
from rl_sync.references import is_reference
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import LAST_PORT, Rule, require_address
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import require_one_of
from rl_sync.weights.locations import STORES, is_remote, store


def _names_host_alone(shell: str) -> bool:
    """Says whether {host} is in a command, and is the only name in braces there."""
    try:
        words = shlex.split(shell)
        parts = [part for word in words for part in string.Formatter().parse(word)]
        for word in words:
            word.format(host="")
    except (ValueError, KeyError, IndexError):
        return False
    return {name for _, name, _, _ in parts if name is not None} == {"host"}


def _twice(names: Sequence[str]) -> str:
    """Returns the first repeated name; empty if there is none."""
    return next((name for name in names if names.count(name) > 1), "")


def _axes(s: RunSettings) -> None:
    for name, axes in s.sharding.rules:
        for axis in axes:
            require_one_of(f"sharding.{name}", axis, MESH_AXES)
        require(
            not _twice(axes),
            f"sharding.{name}={getattr(s.sharding, name)} names an axis twice: name each once.",
        )


def _hosts(s: RunSettings) -> None:
    hosts = f"launch.hosts={s.launch.hosts}"
    for name, address in s.launch.elsewhere.items():
        require(
            bool(name and address), f"{hosts} must be NAME=ADDRESS,… such as explorer2=10.0.0.2."
        )
    pairs = [pair for pair in s.launch.hosts.split(",") if pair.strip()]
    twice = _twice([pair.partition("=")[0].strip() for pair in pairs])
    require(not twice, f"{hosts} says twice where {twice} is: say it once.")


def _ports(s: RunSettings) -> None:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", s.launch.ports)
    require(
        found is not None and 1024 <= int(found[1]) < int(found[2]) <= LAST_PORT,
        f"launch.ports={s.launch.ports!r} must be FIRST-LAST with ports from 1024 to {LAST_PORT},"
        " such as 20000-29999.",
    )


def _files(s: RunSettings) -> None:
    for name in s.launch.sent:
        require(
            not os.path.isabs(name) and ".." not in name.split("/"),
            f"launch.files={s.launch.files!r}: {name} must be in the current directory, as it gets"
            " the same relative path on the other machines: copy it or link it there.",
        )


def _directory(s: RunSettings) -> None:
    if (directory := s.sync.directory) is None:
        return
    name = f"sync.directory={directory}"
    require(
        is_remote(directory) or os.path.isabs(directory),
        f"{name} must be an absolute path, gs://bucket/… or s3://bucket/…: processes may run in"
        " different directories.",
    )
    require(
        not is_remote(directory)
        or (
            store(directory) in STORES and re.fullmatch(r"\w+://[^/]+(/.*)?", directory) is not None
        ),
        f"{name} is in no object store that is known: give gs://bucket/… or s3://bucket/…, or mount"
        " it and give its path.",
    )
    package = STORES.get(store(directory))
    require(
        package is None or importlib.util.find_spec(package) is not None,
        f"{name} needs {package}: pip install {package}.",
    )


def _servers(s: RunSettings) -> None:
    addresses = s.reward.server_addresses
    require(
        s.reward.addresses is None or bool(addresses),
        f"reward.addresses={s.reward.addresses!r} names no server: give HOST:PORT,…, or leave it"
        " out to have completions judged by workers of the run.",
    )
    for address in addresses:
        require_address("reward.addresses", address)
    twice = _twice(addresses)
    require(not twice, f"reward.addresses names {twice} twice: name each server once.")


def _backends(s: RunSettings) -> None:
    for name in s.observe.chosen_backends:
        if not is_reference(name):
            require_one_of("observe.backends", name, BACKENDS)


def _opponents(s: RunSettings) -> None:
    for name in ("opponent", "evaluation_opponent"):
        opponent = getattr(s.environment, name)
        try:
            parse_opponent(opponent)
        except ValueError as error:
            raise ValueError(f"environment.{name}={opponent}: {error}") from error


def _environment_name(s: RunSettings) -> None:
    name = s.environment.name
    if name is None:
        return
    if not is_own(name):
        require_one_of("environment.name", name.partition("(")[0].strip(), ENVIRONMENTS)
        return
    library = name.partition(":")[0]
    require(
        library not in ENVIRONMENTS or not ENVIRONMENTS[library].of_library,
        f"environment.name={name!r} names a class of the library {library}, which is no environment"
        f" here: write {library}(…) with the options that docs/environments.md lists.",
    )


def _corrections(s: RunSettings) -> None:
    for name in s.algorithm.corrections:
        require_one_of("algorithm.correction", name, [*CORRECTIONS, *PUBLISHED_CORRECTIONS])


SINGLE_RULES: dict[str, Rule] = {
    "name": lambda s: require(
        re.fullmatch(r"[^/\0]*[^/\0.][^/\0]*", s.name) is not None,
        f"name={s.name!r} is part of a directory's name: give letters and digits, and no slash"
        " (where the directory lies is said by workdir).",
    ),
    "workdir": lambda s: require(
        "\0" not in s.workdir, f"workdir={s.workdir!r} must not hold a null."
    ),
    "environment.name": _environment_name,
    "environment.opponent": _opponents,
    "environment.evaluation_opponent": lambda s: require(
        is_scripted(s.environment.evaluation_opponent),
        f"environment.evaluation_opponent={s.environment.evaluation_opponent} changes with"
        " training, so success against it says nothing: use a scripted player, such as random.",
    ),
    "model.lora.path, model.path": lambda s: require(
        s.model.lora.path is None or s.model.path is not None,
        f"model.lora.path={s.model.lora.path!r} adapts a checkpoint: set model.path to it.",
    ),
    "model.lora.targets": lambda s: Lora(1, 1.0, s.model.lora.projections()),
    "algorithm.correction": _corrections,
    "rollout.stop_ids": lambda s: require(
        all(part.isdecimal() and int(part) < 2**31 for part in s.rollout.stop_parts),
        f"rollout.stop_ids={s.rollout.stop_ids!r} must be token ids separated by commas.",
    ),
    "sync.directory": _directory,
    "sharding.embed": _axes,
    "replay.address": lambda s: require_address("replay.address", s.replay.address),
    "reward.addresses": _servers,
    "observe.backends": _backends,
    "launch.hosts": _hosts,
    "launch.ports": _ports,
    "launch.files": _files,
    "launch.remote_shell": lambda s: require(
        _names_host_alone(s.launch.remote_shell),
        f"launch.remote_shell={s.launch.remote_shell} must say where {{host}} goes, as in"
        " 'ssh {host}': with that alone in braces (double others: {{ and }}), and quotation marks"
        " that are closed.",
    ),
    "launch.compilation_cache": lambda s: require(
        "://" not in (s.launch.compilation_cache or ""),
        f"launch.compilation_cache={s.launch.compilation_cache} is not a local directory. Give JAX"
        " a remote one by the variable JAX_COMPILATION_CACHE_DIR.",
    ),
}
