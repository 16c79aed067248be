"""Groups of the simulation as items of the replay buffer, and back."""

from __future__ import annotations

import numpy as np

from rl_sync.simulation.faults.invariants import SimulatedGroup
from rl_sync.types import Group


def columns_of(group: SimulatedGroup) -> dict[str, np.ndarray]:
    """Returns a simulated group as columns of an item: one row, whose tokens are its content."""
    return group_of(group).to_columns()


def group_of(group: SimulatedGroup) -> Group:
    """Returns a simulated group as roles know it: one row, whose tokens are its content."""
    shape = (1, group.tokens)
    return Group(
        lease_id=group.lease_id,
        ordinal=group.ordinal,
        prompt_id=0,
        explorer=group.explorer,
        tokens=np.full(shape, group.content),
        completion_mask=np.ones(shape, bool),
        behavior_logprobs=np.zeros(shape),
        policy_versions=np.full(shape, group.oldest_version),
        rewards=np.asarray([0.0, float(group.content % 4 > 0)]),  # A quarter teaches nothing.
    )


def simulated(group: Group) -> SimulatedGroup:
    """Inverts `group_of`."""
    return SimulatedGroup(
        group.lease_id,
        group.ordinal,
        group.explorer,
        group.oldest_version,
        int(group.tokens[0, 0]),
    )
