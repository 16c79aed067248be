"""Memory of a role's process whose device is the machine's own memory.

Such a process needs more than its device's arrays: the interpreter and its libraries, compiled
programs and the memory of compilation (freed memory is kept, see `rl_sync.processes.allocator`),
and temporary arrays. The constants were measured (`benchmarks/memory.py`) in runs of models of 8 to
135 million parameters; the estimates were within a fifth of the measurements.
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
"""Libraries, compiled programs, and half of the memory of compilation, which a cache may save."""
TRAINER_PROGRAM_BYTES = 750_000_000
SAMPLING_ARRAYS = 6.4
"""Number of float32 arrays of slots by vocabulary in a decode step."""
LOGITS_ARRAYS = 3
"""Number of chunks of logits in a backward pass that recomputes them."""

_SNAPSHOT_SHARE = 1.5  # Share of a state that saving takes: copies for host and files.


class Resident(NamedTuple):
    """Memory of a process besides its device's arrays, in bytes.

    Attributes:
      program: interpreter, libraries and compiled programs.
      weights: versions in transfer, or held for it.
      work: temporary memory while the role computes or saves, which are not at the same time.
    """

    program: int
    weights: int
    work: int


def explorer(settings: RunSettings, task: Task) -> Resident:
    """Estimates an explorer's process, without parameters, those that arrive, and its cache."""
    slots = settings.slots // settings.explorer_layout.batch_shards
    vocab_size = wiring.explorer_model(settings, task).vocab_size
    sampling = round(SAMPLING_ARRAYS * 4 * slots * vocab_size)
    arriving = _ends(settings).arriving_bytes(_travelling(settings, task))
    if settings.launch.colocate:
        arriving = 0
    # A program's memory and the arriving weights are not needed at the same time.
    return Resident(EXPLORER_PROGRAM_BYTES, 0, max(sampling, arriving))


def trainer(
    settings: RunSettings, task: Task, rows: tuple[int, int], *, state: int, step: int
) -> Resident:
    """Estimates the trainer's process, without its state.

    Args:
      rows: the number of rows whose logits are computed at once, and of their tokens.
      state: the bytes of parameters, optimizer, reference and critic.
      step: the bytes of gradients and activations.
    """
    weights = _published(settings, task) if settings.explorers else 0
    # When a snapshot is saved, no version is in transfer any more.
    work = max(step + _logits(settings, task, rows), round(_SNAPSHOT_SHARE * state) - weights)
    return Resident(TRAINER_PROGRAM_BYTES, weights, work)


def _logits(settings: RunSettings, task: Task, rows: tuple[int, int]) -> int:
    """Returns the bytes of logits in a backward pass that recomputes them chunk by chunk."""
    model = wiring.trainer_model(settings, task)
    count, row_tokens = rows
    position = 4 * count * model.vocab_size
    if position * (row_tokens - 1) <= settings.trainer.logits_bytes:
        return 0  # They are kept, and count as activations.
    chunk = max(1, settings.trainer.logits_bytes // position) * position
    # The embedding's gradient is accumulated over the chunks, beside that of the current chunk.
    return LOGITS_ARRAYS * chunk + 4 * model.vocab_size * model.embed_dim


def _published(settings: RunSettings, task: Task) -> int:
    """Bytes of the versions that are published."""
    return _ends(settings).published_bytes(_travelling(settings, task), settings.schedule)


def _ends(settings: RunSettings) -> Ends:
    return ends_of(settings.transfer, settings.launch.colocate)


def _travelling(settings: RunSettings, task: Task) -> int:
    """Returns the bytes of a version in transfer."""
    layout = settings.explorer_layout
    model = wiring.model_config(settings, task)
    like = Parameters(model, None, 0, layout, settings.explorer_dtype).travelling_like()
    return memory.device_bytes(like)
