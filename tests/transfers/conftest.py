"""Fixtures: a directory of whole versions, with its two ends."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from rl_sync.transfers.checkpoint import CheckpointPublisher
from tests.transfers.small_weights import make_params, puller_of


@pytest.fixture
def publish(tmp_path):
    """Makes publishers of one directory, and closes them."""
    chains = itertools.count()
    with contextlib.ExitStack() as stack:

        def make(**arguments) -> CheckpointPublisher:
            arguments |= {"chain": f"chain {next(chains)}", "deltas": False}
            publisher = CheckpointPublisher(tmp_path, make_params(0), run="ours", **arguments)
            stack.callback(publisher.close)
            return publisher

        yield make


@pytest.fixture
def puller(tmp_path):
    with contextlib.closing(puller_of(tmp_path)) as puller:
        yield puller
