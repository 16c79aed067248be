"""Shares of a batch, one for the devices of each of the trainer's processes.

The first process reads the groups of a step and lays them out. Every other process gets the rows of
its own devices, and the arrays that all devices read; it never has the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array, Shaped

from rl_sync.cluster.session import Session
from rl_sync.isolation.codec import record
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.types import TrainBatch
from rl_sync.weights.cells import Region, device_regions


@record
@dataclasses.dataclass(frozen=True)
class ProcessShare:
    """The parts of an array that the devices of one process hold.

    Attributes:
      shape, dtype: shape and dtype name of the whole array.
      blocks: parts by their regions; a region that several devices hold is stored once.
    """

    shape: tuple[int, ...]
    dtype: str
    blocks: Mapping[Region, Shaped[np.ndarray, "*block"]]

    @classmethod
    def of(
        cls, array: Array | np.ndarray, sharding: jax.sharding.Sharding, process: int
    ) -> ProcessShare:
        """Cuts out the share of a process, by its index in the cluster."""
        array = np.asarray(array)
        of_process = {
            region
            for device, region in _regions(array.shape, array.dtype, sharding).items()
            if device.process_index == process
        }
        blocks = {
            region: np.ascontiguousarray(array[tuple(slice(*interval) for interval in region)])
            for region in of_process
        }
        return cls(array.shape, array.dtype.name, blocks)

    def placed(self, sharding: jax.sharding.Sharding) -> Array:
        """Returns the array with the parts that this process's devices hold."""
        shards = [
            jax.device_put(self.blocks[region], device)
            for device, region in _regions(self.shape, self.dtype, sharding).items()
            if device.process_index == jax.process_index()
        ]
        return jax.make_array_from_single_device_arrays(self.shape, sharding, shards)


def _regions(
    shape: tuple[int, ...], dtype: np.dtype | str, sharding: jax.sharding.Sharding
) -> Mapping[jax.Device, Region]:
    return device_regions(jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=sharding))


class BatchPlacer:
    """Puts batches on the devices of the trainer's processes.

    Args:
      session: the trainer's session.
      trainer: the actor.
      processes: the trainer's processes, by their indices in their cluster.
    """

    def __init__(self, session: Session, trainer: Trainer, processes: Sequence[int]):
        self._session, self._trainer, self._processes = session, trainer, processes

    def place(self, lay_out: Callable[[], TrainBatch]) -> TrainBatch:
        """Puts a batch, which the first process lays out, where the step reads it.

        Every process calls `place`; `lay_out` is called only in the first process.
        """
        got = self._session.hand_out("the rows of a batch", lay_out, self._share)
        if self._session.leads:
            return self._trainer.place(got)
        abstracts = jax.tree.map(lambda of: jax.ShapeDtypeStruct(of.shape, of.dtype), got)
        return jax.tree.map(ProcessShare.placed, got, self._trainer.batch_shardings(abstracts))

    def _share(self, batch: TrainBatch, process: int) -> TrainBatch:
        """Returns the batch for another process of the program, with a share for each array."""
        index = self._processes[process]
        shardings = self._trainer.batch_shardings(batch)
        return jax.tree.map(
            lambda array, sharding: ProcessShare.of(array, sharding, index), batch, shardings
        )
