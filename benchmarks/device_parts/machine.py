"""The machine: its device, the driver, versions, and the rates that simple programs reach."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jax

from device_parts.finding import Finding, PartOptions
from device_parts.peak_rates import CHIP_NAMES, copied_bytes_per_sec, product_flops_per_sec
from rl_sync.plan.chips import CHIPS

_ROOT = Path(__file__).resolve().parents[2]


def describe(options: PartOptions) -> Iterator[Finding]:
    """Describes the machine, and measures a copy and a matrix product."""
    devices = jax.local_devices()
    kind = devices[0].device_kind
    yield Finding("device", kind, beside=f"{len(devices)} of platform {devices[0].platform}")
    yield Finding("backend", " ".join(devices[0].client.platform_version.split()))
    if driver := _driver():
        yield Finding("driver", driver)
    stats = devices[0].memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        yield Finding("memory for arrays", limit / 1e9, "GB")
    names = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "numpy")
    yield Finding("versions", ", ".join(filter(None, map(_version, names))))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("python", platform.python_version(), beside=f"{cores} CPU cores")
    if commit := _first_line("git", "-C", str(_ROOT), "describe", "--always", "--dirty"):
        yield Finding("commit", commit)
    chip = CHIPS.get(CHIP_NAMES.get(kind, ""))
    copied = copied_bytes_per_sec()
    peak = f"{copied / chip.bandwidth:.0%} of {chip.bandwidth / 1e9:,.0f}" if chip else ""
    yield Finding("a copy reads and writes", copied / 1e9, "GB/s", peak)
    size = 1024 if options.small else 8192
    product = product_flops_per_sec(size)
    peak = f"{product / chip.flops:.0%} of {chip.flops / 1e12:,.0f}" if chip else ""
    yield Finding(f"bfloat16 product of {size:,}³", product / 1e12, "TFLOP/s", peak)


def _driver() -> str:
    query = ("--query-gpu=driver_version", "--format=csv,noheader")
    return _first_line("nvidia-smi", *query) if shutil.which("nvidia-smi") else ""


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_line(*command: str) -> str:
    """Returns the first line that a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]
