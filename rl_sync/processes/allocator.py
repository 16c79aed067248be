"""How glibc gives memory to processes that compute on CPUs.

XLA allocates what a program works with anew at each call and frees it after. By default such memory
goes back to the system every time, and is given again cleared, page by page of 4 KiB: a sixth of a
trainer step in which that was measured. Other C libraries do not know these settings.
"""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = {
    "hugetlb": 1,  # Large pages.
    "mmap_max": 0,
    "trim_threshold": 10**12,  # What is freed is kept.
    # One pool: only the first keeps what is freed, and what it kept serves calls on any thread.
    "arena_max": 1,
}


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that computes; settings that it has already are left alone."""
    tunables = ":".join(f"glibc.malloc.{name}={value}" for name, value in _SETTINGS.items())
    return {"GLIBC_TUNABLES": tunables, **inherited}
