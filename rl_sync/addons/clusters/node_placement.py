"""Places the processes of a run on machines, in order, with the trainer's first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl_sync.cluster.topology import device_share, members_of
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings


class PlacedProcess(NamedTuple):
    """A process of a run that goes to some machine.

    Attributes:
      program: name of its program, such as `explorer2`.
      name: its own name, such as `explorer2/1`.
      devices: number of devices that it takes.
    """

    program: str
    name: str
    devices: int


class NodeRoom(NamedTuple):
    """Room of a machine.

    Attributes:
      devices: number of its devices; None if they are not counted, as on CPUs.
      processes: maximum number of processes on it; None for no limit.
    """

    devices: int | None = None
    processes: int | None = None

    def takes(self, there: Sequence[PlacedProcess], more: PlacedProcess) -> bool:
        """Says whether another process fits beside those that are already there."""
        devices = sum(one.devices for one in there) + more.devices
        return (self.devices is None or devices <= self.devices) and (
            self.processes is None or len(there) < self.processes
        )


_MORE = (
    "put more on each with --processes-per-node or --gpus-per-node, or lower trainer.mesh,"
    " explorer.mesh or explorer.count"
)

Node = tuple[PlacedProcess, ...]
"""Processes of a machine."""


def processes_of(settings: RunSettings) -> list[PlacedProcess]:
    """Returns all processes that compute, the trainer's first."""
    return [
        PlacedProcess(one.program, one.name, device_share(settings, one.program))
        for one in members_of(settings)
    ]


def fill(processes: Sequence[PlacedProcess], first: NodeRoom, others: NodeRoom) -> list[Node]:
    """Fills machines with processes, one machine after the other.

    Args:
      first: room of the first machine.
      others: room of each other machine.

    Raises:
      ConfigError: a process takes more devices than a machine has.
    """
    nodes: list[list[PlacedProcess]] = [[]]
    for one in processes:
        room = first if len(nodes) == 1 else others
        if not room.takes(nodes[-1], one):
            nodes.append([])
            room = others
        if not room.takes(nodes[-1], one):
            kind = "trainer" if one.program == "trainer" else "explorer"
            raise ConfigError(
                f"{one.name} takes {one.devices} devices, and a machine has"
                f" --gpus-per-node={room.devices}: raise {kind}.processes, so that each process has"
                f" fewer devices, or make {kind}.mesh smaller."
            )
        nodes[-1].append(one)
    return [tuple(node) for node in nodes if node]


def check_count(nodes: Sequence[Node], given: int, flag: str, way_out: str = _MORE) -> None:
    """Compares the machines that a run takes with those that are given.

    Args:
      flag: the flag that gave them, as text for the message.
      way_out: advice where they are too few, besides giving more.

    Raises:
      ConfigError: there are too few, or some would be idle.
    """
    if len(nodes) == given:
        return
    shown = "; ".join(" ".join(f"{one.name}:{one.devices}" for one in node) for node in nodes)
    said = (
        f"{flag}: the run's {sum(map(len, nodes))} processes take {len(nodes)} machine"
        f"{'s' * (len(nodes) != 1)} (names and devices: {shown}), and {given}"
        f" {'is' if given == 1 else 'are'} given."
    )
    if given < len(nodes):
        raise ConfigError(f"{said} Give {len(nodes)}, {way_out}.")
    raise ConfigError(f"{said} The others would be idle: give {len(nodes)}.")


def by_program(processes: Sequence[PlacedProcess]) -> Iterator[tuple[str, list[PlacedProcess]]]:
    """Yields each program with its processes."""
    for program in dict.fromkeys(one.program for one in processes):
        yield program, [one for one in processes if one.program == program]
