"""Estimates the memory of a run's programs on accelerators and on CPUs from shapes.

Nothing is compiled or allocated. The parts of a program are those seen in compiled programs, and
the factors of working memory were fitted to them (`benchmarks/compiled.py`). If a role's devices
are CPUs, its process has the arrays of all of them, and also needs libraries, compiled programs,
and versions of the weights in transfer. The constants of these were measured
(`benchmarks/memory.py`) in runs of models of 8 to 135 million parameters. Most estimates were
within a fifth of the measurements. The largest gap: a trainer of 34 million parameters took 2.5 GB
in its steps and 3.0 to 3.3 GB at its end, with an estimate of 1.9 GB.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a program on each device; on CPUs, bytes of a role's process.

    Attributes:
      held: arrays that exist before and after it, by name.
      made: arrays that it makes and that live as long as it runs, by name.
      work: temporary arrays of each phase, by name; phases do not overlap.
      offloaded: arrays in host memory, by name.
      process: memory of a process other than arrays, by name; empty unless its devices are CPUs.
    """

    held: dict[str, int]
    made: dict[str, int]
    work: dict[str, int]
    offloaded: dict[str, int] = dataclasses.field(default_factory=dict)
    process: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def temporary(self) -> int:
        """Returns the bytes of the largest phase."""
        return max(self.work.values(), default=0)

    @property
    def peak(self) -> int:
        """Returns the maximum bytes at any time."""
        parts = [self.held, self.made]
        if self.process:  # Offloaded arrays are in the same memory.
            parts += [self.offloaded, self.process]
        return sum(sum(part.values()) for part in parts) + self.temporary


def in_process(estimate: MemoryEstimate, devices: int, more: dict[str, int]) -> MemoryEstimate:
    """Returns the estimate of a process on CPUs, which has the arrays of all its devices.

    Args:
      estimate: estimate of one device.
      more: other memory of the process.
    """
    parts = (estimate.held, estimate.made, estimate.offloaded)
    arrays = sum(sum(part.values()) for part in parts) + estimate.temporary
    process = more | {"its other devices": (devices - 1) * arrays}
    return dataclasses.replace(
        estimate, process={name: size for name, size in process.items() if size}
    )
