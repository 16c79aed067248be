"""Small blocks, so that small parts have several of them."""

from __future__ import annotations

import pytest

from rl_sync.weights.deltas import applying, history
from tests.weights.deltas.made import BLOCK


@pytest.fixture(scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        for module in (applying, history):
            patch.setattr(module, "BLOCK_BYTES", BLOCK)
        yield
