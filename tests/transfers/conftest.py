"""Fixtures: a weights directory with its two ends."""

from __future__ import annotations

import contextlib

import pytest

from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller
from tests.transfers.small_weights import make_params


@pytest.fixture
def publish(tmp_path):
    """Makes publishers of one directory, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(**arguments) -> CheckpointPublisher:
            publisher = CheckpointPublisher(tmp_path, **arguments)
            stack.callback(publisher.close)
            return publisher

        yield make


@pytest.fixture
def puller(tmp_path):
    with contextlib.closing(CheckpointPuller(tmp_path, make_params(0), reader="e1")) as puller:
        yield puller
