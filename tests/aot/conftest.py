"""Devices of accelerators to compile for."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest

from rl_sync.aot.targets import TargetError, target


@pytest.fixture
def devices() -> Callable[[str], list[jax.Device]]:
    """Finds the devices of a target, and skips the test where their compiler is not installed."""

    def found(name: str) -> list[jax.Device]:
        try:
            return target(name).devices()
        except TargetError as error:
            pytest.skip(str(error))

    return found
