"""A list of rollouts that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import SupportsIndex, overload

from rl_sync.display.notebook_rollouts import as_html
from rl_sync.records.rollouts.rollout_records import Rollout


class RolloutList(list[Rollout]):
    """Rollouts of a run. As the last value of a notebook's cell, they are shown with images.

    Args:
      workdir: work directory of the run.
      rollouts: the rollouts.
    """

    def __init__(self, workdir: Path, rollouts: Iterable[Rollout]) -> None:
        super().__init__(rollouts)
        self._workdir = workdir

    @overload
    def __getitem__(self, place: SupportsIndex) -> Rollout: ...

    @overload
    def __getitem__(self, place: slice) -> RolloutList: ...

    def __getitem__(self, place: SupportsIndex | slice) -> Rollout | RolloutList:
        """Returns a rollout, or those of a slice, which notebooks show alike."""
        if isinstance(place, slice):
            return RolloutList(self._workdir, super().__getitem__(place))
        return super().__getitem__(place)

    def _repr_html_(self) -> str:
        return as_html(self._workdir, self)
