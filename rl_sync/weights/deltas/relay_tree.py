"""A tree of explorers below the trainer, which says who fetches weights from whom.

The trainer serves a fixed number of explorers, and each explorer as many others, so what the
trainer sends does not grow with the number of explorers. Explorers that failed as sources, or are
slow ones, become leaves. If more have failed than there is room for leaves, those below them are
served by the parents of the failed ones, in addition to their own.
"""

from __future__ import annotations

import dataclasses
import statistics

from rl_sync.messages.weight_calls import Relay

_DEMOTED_SECS = 300.0
_SLOW = 0.5
"""Share of the median rate below which a source is slow."""
_WEIGHT = 0.3
"""Weight of the newest measurement in a source's rate."""


@dataclasses.dataclass
class _Member:
    address: str
    rate: float | None = None
    demoted_until: float = 0.0


class RelayTree:
    """Assigns each explorer's process the processes that it asks for blocks.

    Processes are named `EXPLORER.INDEX`. Those of one index need the same shards, and form a tree
    of their own.

    Args:
      fanout: number of processes that the trainer serves, and each of them.
    """

    def __init__(self, fanout: int) -> None:
        self._fanout = fanout
        self._members: dict[str, _Member] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses of all processes, in the order in which they joined."""
        return {name: member.address for name, member in self._members.items()}

    def join(self, name: str, address: str) -> None:
        """Adds a process, or gives a restarted one its new address; it is new then."""
        self._members.pop(name, None)
        self._members[name] = _Member(address)

    def leave(self, explorer: str) -> None:
        """Removes all processes of an explorer."""
        for name in [name for name in self._members if name.rpartition(".")[0] == explorer]:
            del self._members[name]

    def report(self, source: str, nbytes: int, secs: float, failed: bool, now: float) -> None:
        """Notes how a process did as a source.

        Args:
          nbytes: bytes that it sent.
          secs: seconds that it took.
          failed: whether it died, stalled or sent wrong bytes.
          now: the time in seconds, by any clock.
        """
        if (member := self._members.get(source)) is None:
            return
        if failed:
            member.demoted_until = now + _DEMOTED_SECS
        elif nbytes and secs > 0:
            rate = nbytes / secs
            old = rate if member.rate is None else member.rate
            member.rate = old + _WEIGHT * (rate - old)

    def path(self, name: str, now: float) -> list[Relay]:
        """Returns the processes to ask, in order: the parent, its parent, and so on.

        The trainer comes after the last; for the first processes the list is empty.
        """
        index = name.rpartition(".")[2]
        row = [one for one in self._members if one.rpartition(".")[2] == index]
        rates = [rate for one in row if (rate := self._members[one].rate) is not None]
        slow = _SLOW * statistics.median(rates) if rates else 0.0

        def leafness(one: str) -> tuple[bool, bool]:
            member = self._members[one]
            return member.demoted_until > now, member.rate is not None and member.rate < slow

        row.sort(key=leafness)  # The sort is stable: otherwise they stay in the order of joining.
        if name not in row:
            return []
        path = []
        position = row.index(name)
        while position >= self._fanout:
            position = position // self._fanout - 1
            path.append(Relay(row[position], self._members[row[position]].address))
        return [relay for relay in path if self._members[relay.name].demoted_until <= now]
