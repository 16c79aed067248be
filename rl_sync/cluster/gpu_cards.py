"""NVIDIA GPUs as the driver describes them: their names, memory and compute capabilities."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FIELDS = "index,uuid,name,compute_cap,memory.total,memory.used"
_WAIT_SECS = 10.0  # A driver that no process keeps loaded takes seconds.


class GpuCard(NamedTuple):
    """A GPU of this machine.

    Attributes:
      name: name that the driver reports.
      capability: compute capability, major and minor.
      memory: bytes of its memory.
      used: bytes of it that programs hold now.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    used: int

    @property
    def half(self) -> str:
        """Dtype of 16 bits that its matrix units compute in; see `Chip.half`."""
        return "bfloat16" if self.capability >= (8, 0) else "float16"


def cards_of(ids: Sequence[str], environment: Mapping[str, str]) -> list[GpuCard]:
    """Asks the driver about GPUs; starts neither JAX nor CUDA.

    Args:
      ids: numbers or names of GPUs, as in `CUDA_VISIBLE_DEVICES`.
      environment: environment variables.

    Returns:
      The GPUs that the driver knows: none without `nvidia-smi`, and no parts of GPUs (MIG). If GPUs
      differ, CUDA numbers them in another order than the driver, unless `CUDA_DEVICE_ORDER` says
      otherwise, so their numbers are not known.
    """
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WAIT_SECS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [[cell.strip() for cell in line.split(",")] for line in said.stdout.splitlines()]
    known = [(line[0], line[1], card) for line in lines if (card := _card(line))]
    mixed = len({card.name for *_, card in known}) > 1
    numbered = not mixed or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return [
        card
        for number, name, card in known
        if any(name.startswith(one) if "-" in one else numbered and one == number for one in ids)
    ]


def _card(cells: Sequence[str]) -> GpuCard | None:
    """Reads a line of the driver; None if it does not say all, as of memory that the CPU shares."""
    try:
        _, _, name, capability, memory, used = cells
        major, minor = map(int, capability.split("."))
        return GpuCard(name, (major, minor), int(memory) << 20, int(used) << 20)
    except ValueError:
        return None
