"""Describes GPUs for XLA's compiler, from the data sheets of their maker."""

from __future__ import annotations

_CUDNN = (9, 10)


def _description(
    name: str, capability: tuple[int, int], cores: int, memory: int, bandwidth: float, l2: int
) -> str:
    """Returns a `GpuTargetConfigProto` in protobuf's text format.

    Args:
      name: name that the driver reports.
      cores: number of streaming multiprocessors.
      memory: bytes of main memory.
      bandwidth: bytes a second.
      l2: bytes of the L2 cache.
    """
    shared = 227 if capability >= (9, 0) else 163  # Maximum KiB for a block.
    major, minor = capability
    return f"""
    gpu_device_info {{
      cuda_compute_capability {{ major: {major} minor: {minor} }}
      core_count: {cores}
      fpus_per_core: {128 if major >= 9 else 64}
      clock_rate_ghz: {1.98 if major >= 9 else 1.41}
      device_memory_size: {memory}
      memory_bandwidth: {round(bandwidth)}
      l2_cache_size: {l2}
      threads_per_warp: 32
      threads_per_block_limit: 1024
      threads_per_core_limit: 2048
      block_dim_limit_x: 2147483647
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
      registers_per_block_limit: 65536
      registers_per_core_limit: 65536
      shared_memory_per_block: {48 << 10}
      shared_memory_per_block_optin: {shared << 10}
      shared_memory_per_core: {(shared + 1) << 10}
    }}
    platform_name: "CUDA"
    device_description_str: "{name}"
    dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} }}
    """


DESCRIPTIONS = {
    "a100": _description("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 << 30, 2.04e12, 40 << 20),
    "h100": _description("NVIDIA H100 80GB HBM3", (9, 0), 132, 80 << 30, 3.35e12, 50 << 20),
    "h200": _description("NVIDIA H200", (9, 0), 132, 141 << 30, 4.80e12, 50 << 20),
}
