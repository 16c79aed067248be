"""Rows of runs whose trainer's device has no memory for a step."""

import sys

import jax

from rl_sync.roles.trainer.actor import Trainer
from tests.runs import parrot

TOLD = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.\nAllocations: …"
)


def rows(count=40):
    """Makes rows; in the trainer's process every step fails from now on, as JAX fails."""
    if any(word.startswith("--role=trainer") for word in sys.argv):
        Trainer.compile_step = _compiled
    return parrot.rows(count)


def _compiled(trainer, state, batch):
    def step(state, batch):
        raise jax.errors.JaxRuntimeError(TOLD)

    return step
