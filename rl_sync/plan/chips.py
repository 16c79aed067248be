"""Lists the memory and the peak rates of each kind of accelerator chip."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.models.platform import Platform


class Rates(NamedTuple):
    """Peak rates of a device within its role's mesh.

    Attributes:
      flops: dense floating-point operations a second in 16 bits; see `Chip.half`.
      bandwidth: bytes a second from and to its memory.
      link: bytes a second that it exchanges with the other devices, one way.
    """

    flops: float
    bandwidth: float
    link: float


class Chip(NamedTuple):
    """A kind of accelerator. Rates are peaks, as its maker states them; no program reaches them.

    Memory and rates are per device, as JAX counts devices. If a chip has several devices, each has
    a share of the chip's memory and rates. Links belong to the chip: in a ring through all devices
    of the chip, a link serves all of them.

    Attributes:
      platform: platform that compiles for it.
      devices: number of devices of a chip, as JAX counts them.
      memory: bytes of a device's main memory. Makers' GiB are taken as GB; the difference is about
        the amount that a runtime reserves.
      flops: dense floating-point operations a second, in the dtype `half`.
      bandwidth: bytes a second from and to its main memory.
      axes: number of axes along which a TPU has neighbours; 0 for a GPU, which reaches all other
        GPUs of its host through switches.
      link: bytes a second, one way, of one ICI link of a TPU, or of all NVLinks of a GPU.
      network: bytes a second of its share of a host's network card, one way.
      source: page that gives the figures.
      half: dtype of 16 bits that its matrix units compute in: bfloat16 (and on GPUs float16 at the
        same rate), or float16 alone. XLA computes others in float32.
    """

    platform: Platform
    devices: int
    memory: float
    flops: float
    bandwidth: float
    axes: int
    link: float
    network: float
    source: str
    half: str = "bfloat16"


_TPU = "cloud.google.com/tpu/docs/"
_SCALING = "jax-ml.github.io/scaling-book/tpus; "
_NVIDIA = "nvidia.com/en-us/data-center/"
_AMPERE = "nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_GEFORCE = "images.nvidia.com/aem-dam/Solutions/geforce/"
_ADA = f"{_GEFORCE}ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = f"{_GEFORCE}blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_4060 = "nvidia.com/en-us/geforce/graphics-cards/40-series/rtx-4060-4060ti"

CHIPS = {
    # A host has 8 chips of v5e and v6e, and 4 of other TPUs; its cards have 100 or 200 Gbit/s.
    "v4": Chip("tpu", 1, 32e9, 275e12, 1.23e12, 3, 45e9, 6.25e9, f"{_SCALING}{_TPU}v4"),
    "v5e": Chip("tpu", 1, 16e9, 197e12, 0.82e12, 2, 45e9, 3.1e9, f"{_SCALING}{_TPU}v5e"),
    "v5p": Chip("tpu", 1, 95e9, 459e12, 2.77e12, 3, 90e9, 6.25e9, f"{_SCALING}{_TPU}v5p"),
    "v6e": Chip("tpu", 1, 32e9, 918e12, 1.64e12, 2, 90e9, 12.5e9, f"{_SCALING}{_TPU}v6e"),
    # A chip has 192 GiB, 2,307 TFLOPs and 7.38 TB/s; each of its two cores is a device.
    "tpu7x": Chip("tpu", 2, 96e9, 1153.5e12, 3.69e12, 3, 100e9, 6.25e9, f"{_TPU}tpu7x"),
    # Single GPUs without NVLinks, on PCIe of the third and fourth generation. ECC takes a sixteenth
    # of the T4's memory.
    "t4": Chip("gpu", 1, 15e9, 65e12, 0.32e12, 0, 16e9, 3.1e9, f"{_NVIDIA}tesla-t4", "float16"),
    "l4": Chip("gpu", 1, 24e9, 121e12, 0.30e12, 0, 32e9, 3.1e9, f"{_NVIDIA}l4"),
    "a10": Chip("gpu", 1, 24e9, 125e12, 0.60e12, 0, 32e9, 3.1e9, f"{_NVIDIA}products/a10-gpu"),
    # Cards of desktops, on PCIe of the fourth and fifth generation (the RTX 4060 on half of the
    # lanes), with products summed in float32 at half of the rate of those summed in float16: 512
    # operations a clock and multiprocessor, from which that of the RTX 4060 follows.
    "rtx3090": Chip("gpu", 1, 24e9, 71e12, 0.94e12, 0, 32e9, 1.25e9, _AMPERE),
    "rtx4060": Chip("gpu", 1, 8e9, 30e12, 0.27e12, 0, 16e9, 1.25e9, _4060),
    "rtx4090": Chip("gpu", 1, 24e9, 165e12, 1.01e12, 0, 32e9, 1.25e9, _ADA),
    "rtx5090": Chip("gpu", 1, 32e9, 209.5e12, 1.79e12, 0, 64e9, 1.25e9, _BLACKWELL),
    # A host has 8 of these GPUs, each with a card of 200 or 400 Gbit/s.
    "a100_40": Chip("gpu", 1, 40e9, 312e12, 1.56e12, 0, 300e9, 25e9, f"{_NVIDIA}a100"),
    "a100": Chip("gpu", 1, 80e9, 312e12, 2.04e12, 0, 300e9, 25e9, f"{_NVIDIA}a100"),
    "h100": Chip("gpu", 1, 80e9, 989e12, 3.35e12, 0, 450e9, 50e9, f"{_NVIDIA}h100"),
    "h200": Chip("gpu", 1, 141e9, 989e12, 4.80e12, 0, 450e9, 50e9, f"{_NVIDIA}h200"),
}
