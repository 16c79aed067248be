"""Topology of a run: its programs, their processes, clusters and devices.

The trainer and each explorer are a *program*: one process or several, with one mesh over all of
their devices. With collective transfer all programs form one cluster, with the trainer's processes
first. Otherwise each program of several processes forms a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from rl_sync.cluster.gpus import VISIBLE, reserving, shared_out
from rl_sync.models.sharding import Layout
from rl_sync.role_names import TOGETHER, TRAINER, explorer_name, number_of, process_name
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings


class Member(NamedTuple):
    """One of a run's processes that compute.

    Attributes:
      program: `trainer`, `explorer1`, `explorer2`, ….
      process: index of the process in its program; 0 leads.
    """

    program: str
    process: int

    @property
    def name(self) -> str:
        """Name of the process for users; see `process_name`."""
        return process_name(self.program, self.process)


def programs_of(settings: RunSettings) -> list[str]:
    """Returns the programs of a run, the trainer first; a single one under `launch.colocate`."""
    if settings.launch.colocate:
        return [TOGETHER]
    return [TRAINER, *map(explorer_name, range(1, settings.explorers + 1))]


def members_of(settings: RunSettings) -> list[Member]:
    """Returns all processes that compute, program by program."""
    return [
        Member(program, process)
        for program in programs_of(settings)
        for process in range(settings.processes_of(program))
    ]


def device_share(settings: RunSettings, program: str) -> int:
    """Returns the number of devices of each process of a program."""
    return settings.mesh_of(program).devices // settings.processes_of(program)


def cluster_size(settings: RunSettings, program: str) -> int:
    """Returns the number of processes of a program's cluster, or 1 if it has no cluster."""
    if not settings.is_joint:
        return settings.processes_of(program)
    return settings.trainer.processes + settings.explorers * settings.explorer.processes


def indices_of(settings: RunSettings, program: str) -> range:
    """Returns the indices of a program's processes in its cluster."""
    first, count = 0, settings.processes_of(program)
    if settings.is_joint and program != TRAINER:
        number = number_of(program)
        first = settings.trainer.processes + (number - 1) * count
    return range(first, first + count)


def layout_of(settings: RunSettings, program: str) -> Layout:
    """Returns the layout of a program, on an equal part of each of its processes' devices.

    Raises:
      ConfigError: a process has too few devices.
    """
    shape, indices = settings.mesh_of(program), indices_of(settings, program)
    share = device_share(settings, program)
    devices = []
    for index in indices:
        there = [device for device in jax.devices() if device.process_index == index]
        if len(there) < share:
            raise ConfigError(
                f"A mesh of {shape} takes {share} devices of each of the {len(indices)} processes"
                f" of {program}, but one of them has {len(there)}: make the mesh smaller, or give"
                f" the process more devices (on CPU JAX_NUM_CPU_DEVICES, on GPU {VISIBLE})."
            )
        devices += there[:share]
    try:
        return settings.layout(program, shape.mesh(devices))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def role_environment(
    settings: RunSettings, environment: Mapping[str, str], root: Path = Path("/")
) -> dict[str, dict[str, str]]:
    """Returns additional environment variables of each process on this machine, by its name.

    They distribute the machine's GPUs; processes on other machines see all of theirs.

    Args:
      environment, root: see `shared_out`. Each process gets as many GPUs as its part of the mesh
        has.

    Raises:
      ConfigError: there are several GPUs, but too few.
    """
    if settings.launch.colocate:
        # One process has all GPUs, and distributes them itself.
        return {TOGETHER: reserving(1, environment, root)}
    roles = {
        member.name: device_share(settings, member.program)
        for member in members_of(settings)
        if member.name not in settings.launch.elsewhere
    }
    meshes = "trainer.mesh, explorer.mesh or explorer.count"
    return shared_out(roles, environment, "The roles of this run", meshes, root)
