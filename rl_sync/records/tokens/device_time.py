"""Time of devices by role, and its price."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_sync.records.tokens.token_lives import TokenLife
from rl_sync.role_names import role_order

_HOUR_SECS = 3600.0


class DeviceTime(NamedTuple):
    """Time for which roles held devices.

    Attributes:
      secs: seconds of each role times its number of devices. The time of a device that roles share
        is divided equally among them.
      price: price of an hour of a device, in any currency; 0 if it is not known.
    """

    secs: Mapping[str, float]
    price: float = 0.0

    @property
    def costs(self) -> dict[str, float]:
        """Cost of each role, in the currency of the price."""
        return {role: secs / _HOUR_SECS * self.price for role, secs in self.secs.items()}

    def describe(self, trained_tokens: int) -> str:
        """Writes hours and costs in one line, with the cost of a million trained tokens."""
        hours = ", ".join(f"{role} {secs / _HOUR_SECS:.3g}" for role, secs in self.secs.items())
        if not self.price:
            return f"Device hours: {hours}"
        total = sum(self.costs.values())
        costs = ", ".join(f"{role} {_amount(cost)}" for role, cost in self.costs.items())
        said = f"Device hours: {hours}; at {self.price:g} an hour they cost {_amount(total)}"
        if not trained_tokens:
            return f"{said} ({costs})"
        each = _amount(1e6 * total / trained_tokens)
        return f"{said} ({costs}), {each} for a million trained tokens"


def _amount(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.3g}"


def device_secs(
    lives: Sequence[TokenLife], ends_secs: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Returns the seconds for which each role held devices, explorers first.

    Args:
      lives: the roles' processes, each role's in order.
      ends_secs: ends of each role's activities, in Unix seconds and in any order. They say how long
        a process lived that was killed, or is alive.
    """
    users = collections.defaultdict[str, set[str]](set)
    for life in lives:
        for device in life.devices:
            users[device].add(life.role)
    found = dict.fromkeys(sorted({one.role for one in lives}, key=role_order), 0.0)
    for number, life in enumerate(lives):
        later = (one.began_secs for one in lives[number + 1 :] if one.role == life.role)
        until, ended = next(later, float("inf")), life.last_secs
        if not life.is_over:
            own = [end for end in ends_secs.get(life.role, ()) if life.began_secs < end <= until]
            ended = max([ended, *own])
        share = sum(1 / len(users[device]) for device in life.devices)
        found[life.role] += share * (ended - life.began_secs)
    return found
