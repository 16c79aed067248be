"""Limits of environments in worker processes, and access to the endpoint that agents ask."""

from __future__ import annotations

import dataclasses
import math

START_SECS = 120.0
"""Default maximum seconds to start."""


@dataclasses.dataclass(frozen=True)
class HostLimits:
    """Limits of a host with worker processes.

    Attributes:
      workers: maximum number of worker processes, and so of episodes in progress.
      limit_secs: maximum time of an environment for one answer.
      queue_secs: maximum wait of an episode for a worker, after which it fails.
      start_secs: maximum time to import the environment's module, and to start a worker.
      closing_secs: maximum time for environments to close when the host does.
      memory_bytes: address space that an episode may use in addition to the environment's module;
        0 for no limit.
      requests: maximum number of requests of an agent that are answered side by side.

    Raises:
      ValueError: a limit is not positive.
    """

    workers: int = 4
    limit_secs: float = 60.0
    queue_secs: float = 600.0
    start_secs: float = START_SECS
    closing_secs: float = 2.0
    memory_bytes: int = 0
    requests: int = 16

    def __post_init__(self) -> None:
        for name in (
            "workers",
            "limit_secs",
            "queue_secs",
            "start_secs",
            "closing_secs",
            "requests",
        ):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} of environments must be above 0, not {value!r}.")
        if self.memory_bytes < 0:
            raise ValueError(
                f"memory_bytes of environments must be at least 0, not {self.memory_bytes!r};"
                " 0 means no limit."
            )


@dataclasses.dataclass(frozen=True)
class Access:
    """Access to an endpoint.

    Attributes:
      host: address of this machine that the endpoint listens at.
      key: key that each request must have, besides its episode's key in the path; None for an
        endpoint that only this machine reaches.
      connections: maximum number of connections at once, but at most half of the files that the
        system lets this process open. Other connections wait. To make room for them, connections
        whose clients ask for nothing are closed, the longest silent first.
    """

    host: str = "127.0.0.1"
    key: str | None = None
    connections: int = 1024
