"""Targets: accelerators to compile for, which this machine need not have.

A program compiles for a TPU with libtpu (`pip install 'rl_sync[tpu]'`), and for a GPU with one of
JAX's CUDA plugins (`pip install 'rl_sync[cuda]'`). Neither a device nor a driver is needed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from rl_sync.cluster.gpus import has_plugin
from rl_sync.plan.chips import CHIPS, Chip, Rates
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint

HOST_GPUS = 8
_CUDNN = (9, 10)
_CUDA = "12.9.0"  # From here on XLA puts products with parts of arrays into CUDA graphs.
_POD_SIDE = 16  # Chips along each axis of a pod of v5e or v6e.
_CUBE_SIDE = 4  # Chips along each axis of a cube of v4, v5p or tpu7x, which switches join.
_EXAMPLES = "v5e:4x4, 2xv5e:4x4 (two slices), v5p:2x2x1 or h100:8"


class TargetError(ConfigError):
    """A target cannot be used; one line gives the reason."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Accelerators of one kind.

    Attributes:
      name: kind of accelerator, a key of `CHIPS`.
      shape: number of chips along each axis of a TPU slice, or number of GPUs.
      slices: number of TPU slices, which a network connects.
    """

    name: str
    shape: tuple[int, ...]
    slices: int = 1

    def __str__(self) -> str:
        return f"{f'{self.slices}x' if self.slices > 1 else ''}{self.slice}"

    @property
    def slice(self) -> str:
        """One slice, as a text."""
        return f"{self.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        """Memory and rates of the kind."""
        return CHIPS[self.name]

    @property
    def count(self) -> int:
        """Number of devices, as JAX counts them."""
        return self.slices * math.prod(self.shape) * self.chip.devices

    @property
    def links(self) -> int:
        """Number of links to neighbours of the TPU chip that has fewest in the slice.

        A collective of many chips waits for this chip. Along an axis the last chip is linked to the
        first only if the axis spans a pod (v5e, v6e), or if the slice is made of whole cubes (v4,
        v5p, tpu7x); otherwise the chips at both ends have one link along it.
        (jax-ml.github.io/scaling-book/tpus, "TPU Networking".)
        """
        cubes = self.chip.axes == 3 and all(size % _CUBE_SIDE == 0 for size in self.shape)
        return sum(
            2 if cubes or (self.chip.axes == 2 and size == _POD_SIDE) else 1
            for size in self.shape
            if size > 1
        )

    def rates(self, devices: int) -> Rates:
        """Returns the rates of a device in a role with `devices` devices.

        Of a role on several slices it is the links within a slice: the network between slices,
        which is slower, is not told apart.
        """
        chip, link = self.chip, self.chip.link
        if chip.platform == "tpu":
            # The devices of a single chip are assumed to be connected by all links that a chip can
            # have.
            link *= self.links or 2 * chip.axes
        elif devices > HOST_GPUS:
            link = chip.network
        return Rates(chip.flops, chip.bandwidth, link)

    def devices(self) -> list[jax.Device]:
        """Returns the devices, for which programs can be compiled, but not run.

        Raises:
          TargetError: the compiler for them is not installed, or does not know the topology.
        """
        tpu = self.chip.platform == "tpu"
        if not (importlib.util.find_spec("libtpu") if tpu else has_plugin()):
            raise TargetError(
                f"The compiler for {self.name} is not installed: pip install"
                f" 'rl_sync[{'tpu' if tpu else 'cuda'}]' (a device is not needed)."
            )
        try:
            return _tpus(self) if tpu else _gpus(self)
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise TargetError(f"The compiler has no topology {self}: {why}") from error


def target(text: str) -> Target:
    """Reads a target, such as `v5e:4x4` or `h100:8`.

    Raises:
      TargetError: the text is not a target.
    """
    match = re.fullmatch(r"(?:(\d+)x)?([a-z]\w*):(\d+(?:x\d+)*)", text)
    if match is None:
        raise TargetError(
            f"{text!r} is not a target: give a chip and a shape, such as {_EXAMPLES}."
        )
    slices, name = int(match[1] or 1), match[2]
    shape = tuple(map(int, match[3].split("x")))
    if name not in CHIPS:
        raise TargetError(f"{name!r} is not one of the chips {', '.join(CHIPS)}{hint(name, CHIPS)}")
    gpu = CHIPS[name].platform == "gpu"
    if min(shape) < 1 or slices < 1 or (gpu and len(shape) > 1) or (gpu and slices > 1):
        what = "a number of GPUs, in no slices" if gpu else "chips along each axis"
        raise TargetError(f"The shape of {text!r} must be {what}, such as {_EXAMPLES}.")
    return Target(name, shape, slices)


def _tpus(wanted: Target) -> list[jax.Device]:
    # libtpu asks the machine for its TPU unless this is set.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    # Nothing runs on a TPU here, so several processes may use the compiler at once.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    more = {"chip_config_name": "megacore"} if wanted.name == "v4" else {}
    found = topologies.get_topology_desc(
        wanted.slice, platform="tpu", num_slices=wanted.slices, **more
    )
    return list(found.devices)


def _gpus(wanted: Target) -> list[jax.Device]:
    hosts, each = 1, wanted.count
    if each > HOST_GPUS:
        hosts, each = each // HOST_GPUS, HOST_GPUS
    found = topologies.get_topology_desc(
        platform="cuda",
        topology=f"1x{hosts}x{each}",
        target_config=_GPU_DESCRIPTIONS[wanted.name],
    )
    return list(found.devices)


class _GpuKind(NamedTuple):
    """Streaming multiprocessors of a compute capability (CUDA C++ Programming Guide, "Compute
    Capabilities").

    Attributes:
      lanes: float32 units.
      threads: maximum resident threads.
      block_kib: maximum KiB of shared memory of a block.
      core_kib: KiB of shared memory.
    """

    lanes: int
    threads: int
    block_kib: int
    core_kib: int


_GPU_KINDS = {
    (7, 5): _GpuKind(64, 1024, 64, 64),
    (8, 0): _GpuKind(64, 2048, 163, 164),
    (8, 6): _GpuKind(128, 1536, 99, 100),
    (8, 9): _GpuKind(128, 1536, 99, 100),
    (9, 0): _GpuKind(128, 2048, 227, 228),
    (12, 0): _GpuKind(128, 1536, 99, 100),
}


def _gpu_description(
    kind: str, name: str, capability: tuple[int, int], clock_ghz: float, cores: int, l2_mib: int
) -> str:
    """Returns a `GpuTargetConfigProto` in protobuf's text format.

    Args:
      kind: key of `CHIPS`.
      name: name that the driver reports.
      clock_ghz: highest clock.
      cores: number of streaming multiprocessors.
      l2_mib: MiB of the L2 cache.
    """
    chip, (major, minor) = CHIPS[kind], capability
    of_core = _GPU_KINDS[capability]
    return f"""
    gpu_device_info {{
      cuda_compute_capability {{ major: {major} minor: {minor} }}
      runtime_version: "{_CUDA}"
      driver_version: "{_CUDA}"
      compile_time_toolkit_version: "{_CUDA}"
      core_count: {cores}
      fpus_per_core: {of_core.lanes}
      clock_rate_ghz: {clock_ghz}
      device_memory_size: {round(chip.memory / 1e9) << 30}
      memory_bandwidth: {round(chip.bandwidth)}
      l2_cache_size: {l2_mib << 20}
      threads_per_warp: 32
      threads_per_block_limit: 1024
      threads_per_core_limit: {of_core.threads}
      block_dim_limit_x: 2147483647
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
      registers_per_block_limit: 65536
      registers_per_core_limit: 65536
      shared_memory_per_block: {48 << 10}
      shared_memory_per_block_optin: {of_core.block_kib << 10}
      shared_memory_per_core: {of_core.core_kib << 10}
    }}
    platform_name: "CUDA"
    device_description_str: "{name}"
    dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} }}
    """


_GPU_DESCRIPTIONS = {
    kind: _gpu_description(kind, name, capability, clock_ghz, cores, l2_mib)
    for kind, name, capability, clock_ghz, cores, l2_mib in (
        ("t4", "Tesla T4", (7, 5), 1.59, 40, 4),
        ("l4", "NVIDIA L4", (8, 9), 2.04, 58, 48),
        ("a10", "NVIDIA A10", (8, 6), 1.695, 72, 6),
        ("rtx3090", "NVIDIA GeForce RTX 3090", (8, 6), 1.695, 82, 6),
        ("rtx4060", "NVIDIA GeForce RTX 4060", (8, 9), 2.46, 24, 24),
        ("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 2.52, 128, 72),
        ("rtx5090", "NVIDIA GeForce RTX 5090", (12, 0), 2.407, 170, 96),
        ("a100_40", "NVIDIA A100-SXM4-40GB", (8, 0), 1.41, 108, 40),
        ("a100", "NVIDIA A100-SXM4-80GB", (8, 0), 1.41, 108, 40),
        ("h100", "NVIDIA H100 80GB HBM3", (9, 0), 1.98, 132, 50),
        ("h200", "NVIDIA H200", (9, 0), 1.98, 132, 50),
    )
}
"""GPUs as the compiler has to know them, from the data sheets of their maker."""
