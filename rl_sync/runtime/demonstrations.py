"""Batches of demonstrations, for a run in which nothing is generated."""

from __future__ import annotations

import dataclasses

import numpy as np

from rl_sync.processes.session import Session
from rl_sync.runtime.batches import Consumed
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.task import Task
from rl_sync.types import NO_LEASE, Group


@dataclasses.dataclass(frozen=True)
class DemonstrationReader:
    """A reader (see `Reader`) whose groups nobody has generated: rows are demonstrations.

    They are as fresh as can be, have no reward, and their behavior policy is not known.

    Attributes:
      session: the trainer's.
      task: where demonstrations come from.
    """

    session: Session
    task: Task

    def next(self, step: int) -> Consumed:
        """The demonstrations of a step, which depend on the seed and the step alone.

        Raises:
          RunStoppedError: the run is being stopped.
        """
        self.session.check()
        settings = self.session.settings
        count, size = settings.trainer.groups_per_step, settings.trainer.group_size
        # A word more than the warm-up's, so that step t draws others than its t-th batch.
        drawn = draw(self.task, count * size, [settings.seed, step, count * size])
        tokens, mask = (
            np.asarray(rows).reshape(count, size, -1) for rows in (drawn.tokens, drawn.mask)
        )
        groups = [
            Group(
                lease_id=NO_LEASE,
                ordinal=(step - 1) * count + i,
                prompt_id=NO_LEASE,
                explorer=0,
                tokens=tokens[i],
                completion_mask=mask[i],
                behavior_logprobs=np.zeros(mask[i].shape, np.float32),
                policy_versions=np.where(mask[i], step - 1, -1).astype(np.int32),
                rewards=np.zeros(size, np.float32),
            )
            for i in range(count)
        ]
        return Consumed(groups, [])

    def close(self, reason: str) -> None:
        """Nothing was sampled in advance."""
