"""Where a process of the run is: who else there is, and which devices are its program's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from rl_sync.models.sharding import Layout
from rl_sync.processes.secret import secret_of
from rl_sync.processes.team import Follower, Leader, Team
from rl_sync.processes.topology import Member, cluster_size, device_share, indices_of, layout_of
from rl_sync.settings.run import RunSettings
from rl_sync.weights.cluster import init_cluster
from rl_sync.weights.local import LocalPublisher


class Addresses(NamedTuple):
    """Where the others are, each as host:port.

    Attributes:
      coordinator: where the cluster of this process forms, if it is in one.
      team: where the first process of this one's program tells the others what it hears.
    """

    master: str
    replay: str
    coordinator: str
    team: str


class Place(NamedTuple):
    """Where a program runs, or one process of it.

    Attributes:
      layout: the program's devices, and how arrays lie on them.
      team: its processes.
      processes: their indices in their cluster.
      weights: where versions are handed over to roles of the same process; None where they are not.
    """

    layout: Layout
    team: Team
    processes: Sequence[int]
    weights: LocalPublisher | None = None


def join(settings: RunSettings, addresses: Addresses, member: Member) -> Place:
    """Starts JAX with the devices of a process, in the cluster that it belongs to.

    Raises:
      ConfigError: a process has fewer devices than its part of the mesh.
    """
    team = _team(settings, addresses, member)
    program = member.program
    devices = device_share(settings, program)
    if devices > 1:
        # A CPU is one device unless JAX is told before it starts; accelerators are as they are.
        jax.config.update("jax_num_cpu_devices", devices)
    size, indices = cluster_size(settings, program), indices_of(settings, program)
    if size > 1:
        init_cluster(
            addresses.coordinator,
            size,
            indices[member.process],
            timeout_secs=settings.launch.start_secs,
        )
    return Place(layout_of(settings, program), team, indices)


def _team(settings: RunSettings, addresses: Addresses, member: Member) -> Team:
    """How a process agrees with the others of its program."""
    processes = settings.processes_of(member.program)
    if processes == 1:
        return Team()
    secret = secret_of(settings.workdir)
    if member.process == 0:
        return Leader(member.program, processes - 1, addresses.team, secret)
    launch = settings.launch
    return Follower(
        member.program,
        member.process,
        addresses.team,
        start_secs=launch.start_secs,
        # The first process's own waits end before.
        wait_secs=launch.wait_secs + launch.call_secs,
        secret=secret,
    )
