"""Settings of glibc's allocator for processes that compute on CPUs.

In each call XLA allocates the memory of a program, and frees it afterwards. By default such memory
is returned to the system every time, and is allocated again as zeroed pages of 4 KiB. This took a
sixth of a trainer step where it was measured. Other C libraries ignore these settings.
"""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = {
    "hugetlb": 1,  # Large pages.
    "mmap_max": 0,
    "trim_threshold": 10**12,  # Freed memory is kept.
    # One arena: only the first one keeps freed memory, which then serves calls on any thread.
    "arena_max": 1,
}


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process that computes; existing settings are kept."""
    tunables = ":".join(f"glibc.malloc.{name}={value}" for name, value in _SETTINGS.items())
    return {"GLIBC_TUNABLES": tunables, **inherited}
