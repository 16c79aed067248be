"""Memory of a role's process whose device is the machine's own memory.

Such a process needs more than its device's arrays: the interpreter and its libraries, compiled
programs and the memory of compilation (freed memory is kept, see `rl_sync.processes.allocator`),
and versions of the weights in transfer. The constants were measured (`benchmarks/memory.py`) in
runs of models of 8 to 135 million parameters; the estimates were within a fifth of the
measurements.
"""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.aot.estimate import Estimate
from rl_sync.models import memory
from rl_sync.runtime import wiring
from rl_sync.runtime.parameters import Parameters
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.transfers.ends import Ends, ends_of

EXPLORER_PROGRAM_BYTES = 480_000_000
"""Libraries, compiled programs, and half of the memory of compilation, which a cache may save."""
TRAINER_PROGRAM_BYTES = 750_000_000

_SNAPSHOT_SHARE = 1.5  # Share of a state that saving takes: copies for host and files.


class Resident(NamedTuple):
    """Memory of a process besides the arrays that last, in bytes.

    Attributes:
      program: interpreter, libraries and compiled programs.
      weights: versions in transfer, or held for it.
      work: temporary memory while the role computes or saves, which are not at the same time.
    """

    program: int
    weights: int
    work: int

    def with_arrays(self, estimate: Estimate) -> int:
        """Returns the bytes of the process with its arrays, of which none is on a device."""
        arrays = (estimate.held, estimate.made, estimate.offloaded)
        return sum(self) + sum(sum(part.values()) for part in arrays)


def explorer(settings: RunSettings, task: Task, engine: Estimate) -> Resident:
    """Estimates an explorer's process, without the arrays of its engine."""
    arriving = _ends(settings).arriving_bytes(_travelling(settings, task))
    if settings.launch.colocate:
        arriving = 0
    # A program's memory and the arriving weights are not needed at the same time.
    return Resident(EXPLORER_PROGRAM_BYTES, 0, max(*engine.work.values(), arriving))


def trainer(settings: RunSettings, task: Task, step: Estimate) -> Resident:
    """Estimates the trainer's process, without the arrays of its state and of a step."""
    weights = _published(settings, task) if settings.explorers else 0
    state = sum(step.held.values()) + sum(step.offloaded.values())
    # When a snapshot is saved, no version is in transfer any more, and no step is taken.
    most = max(step.temporary, round(_SNAPSHOT_SHARE * state) - weights)
    return Resident(TRAINER_PROGRAM_BYTES, weights, most - sum(step.made.values()))


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
