"""Devices of other machines, for tests that compile for them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest

from rl_sync.plan.targets import TargetError, target


@pytest.fixture(scope="session")
def devices() -> Callable[[str], list[jax.Device]]:
    """Returns the devices of a target, such as `v5e:2x2`; skips where its compiler is missing."""
    # A plugin that looks for devices of its own, and finds none, does not compile for any.
    jax.config.update("jax_platforms", jax.config.jax_platforms or "cpu")

    def of(text: str) -> list[jax.Device]:
        try:
            return target(text).devices()
        except TargetError as error:
            if "not installed" not in str(error):
                raise
            pytest.skip(str(error))

    return of
