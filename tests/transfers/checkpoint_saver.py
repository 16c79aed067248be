"""Publishes versions until it is killed, which `test_checkpoint_publisher.py` does in mid-save."""

from __future__ import annotations

import sys
from pathlib import Path

import jax.numpy as jnp

from rl_sync.transfers.checkpoint import CheckpointPublisher

LEAVES, SIZE = 60, 200_000

if __name__ == "__main__":
    abstract = [jnp.zeros(SIZE, jnp.float32)] * LEAVES
    publisher = CheckpointPublisher(
        Path(sys.argv[1]), abstract, run="ours", chain="killed", deltas=False
    )
    for version in range(10_000):
        publisher.publish(version, [jnp.full((SIZE,), version, jnp.float32) for _ in range(LEAVES)])
