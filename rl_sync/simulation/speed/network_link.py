"""A network between the trainer and explorers on other machines, in place of the measured one."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.simulation.speed.workload import NOTHING, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS


class NetworkLink(NamedTuple):
    """A link between the trainer and the explorers.

    Attributes:
      bytes_per_sec: its bandwidth.
      latency_secs: time until the first byte arrives.
    """

    bytes_per_sec: float
    latency_secs: float

    def secs(self, nbytes: float) -> float:
        """Returns the time that bytes take."""
        return self.latency_secs + nbytes / self.bytes_per_sec

    def carrying(self, work: Workload, version_bytes: float) -> Workload:
        """Returns the work of a run over this link.

        Args:
          version_bytes: bytes of a version as it travels.
        """
        secs = Samples.of(self.secs(version_bytes))
        times = {
            name: TransferTimes(
                publish=secs if one.has_directory and not one.needs_processes else NOTHING,
                pull=secs,
                shares_link=one.needs_processes,
            )
            for name, one in TRANSFERS.items()
        }
        return dataclasses.replace(work, transfers=times)
