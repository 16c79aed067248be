"""Limits of environments in worker processes."""

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
