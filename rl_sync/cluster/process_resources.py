"""Resources of a process: the addresses of other processes, and its program's devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.team import Follower, Leader, Team
from rl_sync.cluster.topology import Member, cluster_size, device_share, indices_of, layout_of
from rl_sync.models.sharding import Layout
from rl_sync.settings.run_settings import RunSettings
from rl_sync.weights.cluster import init_cluster
from rl_sync.weights.ends_interface import Publisher


class Addresses(NamedTuple):
    """Addresses of other processes, each as `host:port`.

    Attributes:
      master: address of the master.
      replay: address of the replay buffer's server.
      coordinator: coordinator of this process's cluster, if it is in one.
      team: first process of this process's program, which shares its results with the others.
    """

    master: str
    replay: str
    coordinator: str
    team: str


class Resources(NamedTuple):
    """Resources of a program, or of one of its processes.

    Attributes:
      layout: devices of the program, and the sharding of arrays on them.
      team: processes of the program.
      processes: their indices in their cluster.
      weights: publisher for roles in the same process; None if there are none.
    """

    layout: Layout
    team: Team
    processes: Sequence[int]
    weights: Publisher | None = None


def join(settings: RunSettings, addresses: Addresses, member: Member) -> Resources:
    """Starts JAX with the devices of a process, in its cluster.

    Raises:
      ConfigError: a process has fewer devices than its part of the mesh.
    """
    team = _team(settings, addresses, member)
    program = member.program
    devices = device_share(settings, program)
    if devices > 1:
        # A CPU is one device unless JAX gets another number before it starts. Accelerators need no
        # setting.
        jax.config.update("jax_num_cpu_devices", devices)
    size, indices = cluster_size(settings, program), indices_of(settings, program)
    if size > 1:
        init_cluster(
            addresses.coordinator,
            size,
            indices[member.process],
            timeout_secs=settings.launch.start_secs,
        )
    return Resources(layout_of(settings, program), team, indices)


def _team(settings: RunSettings, addresses: Addresses, member: Member) -> Team:
    """Makes the team in which a process agrees with the others of its program."""
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
        # Longer than the first process's own waits, so that those end first.
        wait_secs=launch.wait_secs + launch.call_secs,
        secret=secret,
    )
