"""Accelerators: the memory and the peak rates of each kind of chip."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.models.platform import Platform


class Chip(NamedTuple):
    """A kind of accelerator. Rates are peaks, as its maker states them; no program reaches them.

    Attributes:
      platform: the platform that compiles for it.
      memory: bytes of its main memory.
      flops: dense bfloat16 floating-point operations a second.
      bandwidth: bytes a second from and to its main memory.
      link: bytes a second to its neighbours over all its links, one way: ICI of a TPU, NVLink of a
        GPU.
      network: bytes a second of its share of a host's network card, one way.
      source: the page that the figures are from.
    """

    platform: Platform
    memory: float
    flops: float
    bandwidth: float
    link: float
    network: float
    source: str


_TPU = "cloud.google.com/tpu/docs/"
_SCALING = "jax-ml.github.io/scaling-book/tpus; "
_NVIDIA = "nvidia.com/en-us/data-center/"

CHIPS = {
    # A host has 8 chips of v5e and v6e, and 4 of the others; its cards 100 or 200 Gbit/s.
    "v4": Chip("tpu", 32e9, 275e12, 1.23e12, 270e9, 6.25e9, f"{_SCALING}{_TPU}v4"),
    "v5e": Chip("tpu", 16e9, 197e12, 0.82e12, 180e9, 3.1e9, f"{_SCALING}{_TPU}v5e"),
    "v5p": Chip("tpu", 95e9, 459e12, 2.77e12, 540e9, 6.25e9, f"{_SCALING}{_TPU}v5p"),
    "v6e": Chip("tpu", 32e9, 918e12, 1.64e12, 360e9, 12.5e9, f"{_SCALING}{_TPU}v6e"),
    "tpu7x": Chip("tpu", 192e9, 2307e12, 7.38e12, 600e9, 12.5e9, f"{_TPU}tpu7x"),
    # A host has 8 of them, each with a card of 200 or 400 Gbit/s.
    "a100": Chip("gpu", 80e9, 312e12, 2.04e12, 300e9, 25e9, f"{_NVIDIA}a100"),
    "h100": Chip("gpu", 80e9, 989e12, 3.35e12, 450e9, 50e9, f"{_NVIDIA}h100"),
    "h200": Chip("gpu", 141e9, 989e12, 4.80e12, 450e9, 50e9, f"{_NVIDIA}h200"),
}
