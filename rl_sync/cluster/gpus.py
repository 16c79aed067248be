"""NVIDIA GPUs of this machine: which ones JAX can use, and how processes share them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl_sync.settings.records import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PLATFORMS = "JAX_PLATFORMS"
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_OWN_CHOICES = (
    _FRACTION,
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""Variables with which users choose the memory of JAX's processes themselves."""
RESERVED = 0.9
"""Part of a GPU's memory that a run's processes reserve; CUDA itself needs some of the rest."""
_JAX_RESERVES = 0.75
_LEAST_DRIVERS = {12: 525, 13: 580}
"""Oldest driver for each CUDA version (CUDA's release notes, "CUDA Driver")."""


class MachineGpus(NamedTuple):
    """NVIDIA GPUs of a machine.

    Attributes:
      ids: the ids of those that a process may use, as in `CUDA_VISIBLE_DEVICES`.
      cuda: CUDA version of JAX's plugin; None if it is not installed.
      driver: version of the driver, such as `580.65.06`; empty if it is not known.
    """

    ids: tuple[str, ...] = ()
    cuda: int | None = None
    driver: str = ""

    @property
    def usable(self) -> tuple[str, ...]:
        """Ids of those that JAX can use."""
        return () if self.cuda is None else self.ids

    @property
    def unused(self) -> str:
        """A line about GPUs that JAX leaves unused, as it is not installed for CUDA; or empty."""
        if not self.ids or self.cuda is not None:
            return ""
        return (
            "This machine has an NVIDIA GPU, but JAX is installed for CPUs alone, and the run"
            ' computes there: `pip install "rl_sync[cuda]"` (drivers before 580: `[cuda12]`), or'
            f" set {_PLATFORMS}=cpu if you mean it."
        )

    def check(self) -> None:
        """Raises ConfigError if the driver is too old for the installed JAX."""
        least = _LEAST_DRIVERS.get(self.cuda or 0, 0)
        if not self.ids or not self.driver or int(self.driver.partition(".")[0]) >= least:
            return
        older = ""
        if self.cuda == 13:  # With both plugins JAX would register one platform twice.
            older = (
                "`pip uninstall jax-cuda13-plugin jax-cuda13-pjrt` and `pip install"
                ' "rl_sync[cuda12]"`, '
            )
        raise ConfigError(
            f"JAX is installed for CUDA {self.cuda}, which needs an NVIDIA driver of version"
            f" {least} or newer, and this machine has {self.driver}: {older}install a newer"
            f" driver, or set {_PLATFORMS}=cpu."
        )


def machine_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> MachineGpus:
    """Finds the GPUs of this machine, without starting JAX or CUDA.

    Args:
      environment: environment variables. Without `CUDA_VISIBLE_DEVICES` all GPUs may be used, and
        none if `JAX_PLATFORMS` names others.
      root: root directory, which has `dev` and `proc`.
    """
    platforms = environment.get(_PLATFORMS, "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return MachineGpus()
    cuda = next((version for version in (13, 12) if _has_plugin(version)), None)
    count = len([*(root / "dev").glob("nvidia[0-9]*")])
    if not count and cuda and (root / "dev" / "dxg").exists():
        count = 1  # Linux on Windows shows no more of its GPUs.
    ids = tuple(map(str, range(count)))
    if count and VISIBLE in environment:
        ids = _named(environment)
    return MachineGpus(ids, cuda, _driver(root))


def _named(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the ids in `CUDA_VISIBLE_DEVICES`; those after an id of -1 do not count."""
    ids = [name.strip() for name in environment[VISIBLE].split(",")]
    return tuple(filter(None, ids[: ids.index("-1")] if "-1" in ids else ids))


def has_plugin() -> bool:
    """Says whether JAX is installed for NVIDIA GPUs."""
    return any(map(_has_plugin, _LEAST_DRIVERS))


def _has_plugin(version: int) -> bool:
    return importlib.util.find_spec(f"jax_cuda{version}_plugin") is not None


def _driver(root: Path) -> str:
    try:
        text = (root / "proc" / "driver" / "nvidia" / "version").read_text()
    except OSError:
        return ""
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return found[1] if found else ""


def reserving(
    processes: int, environment: Mapping[str, str], root: Path = Path("/")
) -> dict[str, str]:
    """Returns additional environment variables of each process that shares the only GPU.

    Each reserves an equal part of `RESERVED` of its memory (JAX alone would reserve 0.75, and have
    no more than that), unless a variable of JAX says otherwise. With several GPUs, or none, there
    are no such variables.
    """
    own = any(name in environment for name in _OWN_CHOICES)
    if own or len(_given(environment, root)) != 1:
        return {}
    return {_FRACTION: f"{int(100 * RESERVED / processes) / 100:.2f}"}


def reserved_share(environment: Mapping[str, str], gpus: int) -> float:
    """Returns the part of a GPU's memory that all processes on it have together, at most.

    Args:
      environment: environment variables of the launcher.
      gpus: number of GPUs that the run has; see `reserving`.

    Raises:
      ConfigError: a variable of JAX is not a number.
    """
    for name in (_FRACTION, "XLA_CLIENT_MEM_FRACTION"):
        if chosen := environment.get(name):
            try:
                return float(chosen)
            except ValueError:
                raise ConfigError(f"{name}={chosen!r} must be a number, such as 0.75.") from None
    return RESERVED if gpus == 1 else _JAX_RESERVES


def _given(environment: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Returns the ids of the GPUs that processes may have."""
    named = VISIBLE in environment
    return _named(environment) if named else machine_gpus(environment, root).usable


def shared_out(
    counts: Mapping[str, int],
    environment: Mapping[str, str],
    who: str,
    settings: str,
    root: Path = Path("/"),
) -> dict[str, dict[str, str]]:
    """Returns additional environment variables of processes, which distribute a machine's GPUs.

    Each process gets as many GPUs as it needs. If there is only one, all share it; see `reserving`.

    Args:
      counts: number of GPUs of each process, by its name.
      environment: environment variables of the launcher. The GPUs are those that
        `CUDA_VISIBLE_DEVICES` names; without it, those that JAX can use.
      who: name of all of them in messages.
      settings: names of the settings that say how many GPUs they need.
      root: see `machine_gpus`.

    Raises:
      ConfigError: there are several GPUs, but too few.
    """
    named, ids = VISIBLE in environment, [*_given(environment, root)]
    needed = sum(counts.values())
    if len(ids) == 1 and needed == len(counts):
        return {name: reserving(needed, environment, root) for name in counts}
    if ids and len(ids) < needed:
        wanted = ", ".join(f"{name} {count}" for name, count in counts.items())
        there = f"{VISIBLE}={environment[VISIBLE]} names" if named else "this machine has"
        raise ConfigError(
            f"{who} need {needed} GPUs ({wanted}), but {there} {len(ids)}: name more, lower"
            f" {settings}, or share one, as with {VISIBLE}={ids[0]}."
        )
    given: dict[str, dict[str, str]] = {}
    for name, count in counts.items():
        given[name] = {VISIBLE: ",".join(ids[:count])} if ids else {}
        ids = ids[count:]
    return given
