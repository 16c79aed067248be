"""The most that a role's process holds where its device is the machine's own memory.

There a role needs more than its device's arrays: the interpreter and its libraries, compiled
programs and what compiling took (freed memory is kept, see `rl_sync.processes.allocator`), and what
exists for a moment. The constants were measured (`benchmarks/memory.py`), in runs of models of 8 to
135 million parameters, of which the figures were within a fifth.
"""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.models import memory
from rl_sync.runtime import wiring
from rl_sync.runtime.parameters import Parameters
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.transfers.ends import Ends, ends_of

EXPLORER_PROGRAM_BYTES = 480_000_000
"""Libraries, compiled programs, and half of what compiling takes: a cache may spare it."""
TRAINER_PROGRAM_BYTES = 750_000_000
SAMPLING_ARRAYS = 6.4
"""Arrays of slots by vocabulary, in float32, that a decode step works with."""
LOGITS_ARRAYS = 3
"""Chunks of logits that a backward pass works with which computes them again."""

_SNAPSHOT_SHARE = 1.5  # Of a state, what saving it takes: copies for the host and for the files.


class Resident(NamedTuple):
    """What a process holds besides its device's arrays, in bytes.

    Attributes:
      program: interpreter, libraries and compiled programs.
      weights: versions that travel, or stand ready to.
      work: what exists while the role computes, or saves, which it does not do at the same time.
    """

    program: int
    weights: int
    work: int


def explorer(settings: RunSettings, task: Task) -> Resident:
    """What an explorer's process holds besides parameters, those that arrive, and its cache."""
    slots = settings.slots // settings.explorer_layout.batch_shards
    vocab_size = wiring.explorer_model(settings, task).vocab_size
    sampling = round(SAMPLING_ARRAYS * 4 * slots * vocab_size)
    arriving = _ends(settings).arriving_bytes(_travelling(settings, task))
    if settings.launch.colocate:
        arriving = 0
    # A program's memory and what arrives are not needed at once.
    return Resident(EXPLORER_PROGRAM_BYTES, 0, max(sampling, arriving))


def trainer(settings: RunSettings, task: Task, rows: int, state: int, step: int) -> Resident:
    """What the trainer's process holds besides its state.

    Args:
      rows: whose logits are computed at once.
      state: bytes of parameters, optimizer, reference and critic.
      step: bytes of gradients and activations.
    """
    weights = _published(settings, task) if settings.explorers else 0
    # When a snapshot is saved no version is on its way any more.
    work = max(step + _logits(settings, task, rows), round(_SNAPSHOT_SHARE * state) - weights)
    return Resident(TRAINER_PROGRAM_BYTES, weights, work)


def _logits(settings: RunSettings, task: Task, rows: int) -> int:
    """Bytes that logits take in a backward pass which computes them again, a chunk at a time."""
    model = wiring.trainer_model(settings, task)
    position = 4 * rows * model.vocab_size
    if position * (task.row_tokens - 1) <= settings.trainer.logits_bytes:
        return 0  # They are kept, and counted with the activations.
    chunk = max(1, settings.trainer.logits_bytes // position) * position
    # The embedding's gradient is added up over the chunks, beside the one that is made.
    return LOGITS_ARRAYS * chunk + 4 * model.vocab_size * model.embed_dim


def _published(settings: RunSettings, task: Task) -> int:
    """Bytes of the versions that are published."""
    return _ends(settings).published_bytes(_travelling(settings, task), settings.schedule)


def _ends(settings: RunSettings) -> Ends:
    return ends_of(settings.transfer, settings.launch.colocate)


def _travelling(settings: RunSettings, task: Task) -> int:
    """Bytes of a version, as it travels."""
    layout = settings.explorer_layout
    model = wiring.model_config(settings, task)
    like = Parameters(model, None, 0, layout, settings.explorer_dtype).travelling_like()
    return memory.device_bytes(like)
