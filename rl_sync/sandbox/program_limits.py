"""Limits of a confined program."""

from __future__ import annotations

import dataclasses

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class ProgramLimits:
    """Limits of one run of a program.

    Attributes:
      wall_secs: maximum wall-clock time of the run.
      cpu_secs: the processor time of each process, rounded up to whole seconds.
      memory_bytes: the address space of each process, and the memory of all of them together.
      output_bytes: the length of its output and of its error output, each.
      file_bytes: the size of a file, and of all files together if the layer has its own disk.
      processes: the number of processes and threads.
      counts_reserved: whether address space that is reserved and not used counts as memory. Some
        runtimes, such as those of JavaScript and Java, reserve gigabytes.

    Raises:
      ValueError: a limit is not positive.
    """

    wall_secs: float = 10.0
    cpu_secs: float = 10.0
    memory_bytes: int = 512 * MIB
    output_bytes: int = 4 * MIB
    file_bytes: int = 16 * MIB
    processes: int = 32
    counts_reserved: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{field.name} of a sandbox must be positive, not {value!r}.")
