"""A network between the trainer and explorers on other machines, in place of the measured one."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.simulation.speed.workload import (
    NOTHING,
    CallTimes,
    Samples,
    TransferTimes,
    Workload,
)
from rl_sync.transfer import TRANSFERS

_LEASE_TRIPS, _JUDGE_TRIPS, _INSERT_TRIPS = 2.0, 1.0, 2.0
_PULL_TRIPS = {"server": 3.4, "collective": 9.0}
"""Round trips by kind of transfer; measured with a latency of 100 ms (`benchmarks/machines.py`)."""


class NetworkLink(NamedTuple):
    """A link between the trainer and the explorers, which call the trainer's machine.

    Attributes:
      bytes_per_sec: its bandwidth.
      latency_secs: time until the first byte arrives, one way.
    """

    bytes_per_sec: float
    latency_secs: float

    def __str__(self) -> str:
        bits = 8 * self.bytes_per_sec
        rate = f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
        return f"{rate} and {1000 * self.latency_secs:g} ms"

    def secs(self, nbytes: float) -> float:
        """Returns the time that bytes take."""
        return self.latency_secs + nbytes / self.bytes_per_sec

    def carrying(self, work: Workload, version_bytes: float) -> Workload:
        """Returns the work of a run over this link.

        Calls, insertions and pulls take a number of round trips, each of twice the latency.

        Args:
          version_bytes: bytes of a version as it travels.
        """
        trip = 2 * self.latency_secs

        def pull(name: str) -> Samples:
            trips = _PULL_TRIPS.get(name)
            if trips is None:
                return Samples.of(self.secs(version_bytes))
            return Samples.of(version_bytes / self.bytes_per_sec + trips * trip)

        times = {
            name: TransferTimes(
                publish=pull(name) if one.has_directory and not one.needs_processes else NOTHING,
                pull=pull(name),
                shares_link=one.needs_processes,
            )
            for name, one in TRANSFERS.items()
        }
        calls = CallTimes(_LEASE_TRIPS * trip, _JUDGE_TRIPS * trip, _INSERT_TRIPS * trip)
        return dataclasses.replace(work, transfers=times, calls=calls)
