"""The peak of a part's memory, beside the peak that `plan` computes."""

from __future__ import annotations

import resource

import jax

from device_parts.finding import Finding


def peak_bytes() -> int | None:
    """Returns the most bytes in use at any time; on CPUs those of the process.

    None if the backend does not count them.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def memory_limit() -> float:
    """Returns the bytes that arrays may take; infinite where nobody says."""
    return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", "inf"))


def beside_plan(name: str, planned: float, more: str = "") -> Finding:
    """Compares the peak so far with a planned one."""
    found = peak_bytes()
    if found is None:
        return Finding(name, "not counted", beside=f"plan: {planned / 1e9:.3g} GB{more}")
    return Finding(
        name,
        found / 1e9,
        "GB",
        f"plan: {planned / 1e9:.3g} GB, {(planned - found) / found:+.0%}{more}",
    )
