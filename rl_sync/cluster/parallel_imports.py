"""Keeps the garbage collector from scanning permanent objects again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Pauses garbage collection during imports, then excludes all objects so far from it for good.

    Nearly all objects that an import makes are permanent. Scanning them would take a fifth of the
    import's time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()


def settle() -> None:
    """Excludes all objects so far from garbage collection for good.

    A role calls it once its programs are compiled. Compilation makes hundreds of thousands of
    permanent objects; scanning them took a third of a rollout's time.
    """
    gc.collect()
    gc.freeze()
