"""The snapshots of a trainer in one folder, as its processes use them together."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rl_sync.checkpoints.adapted_loading import load_adapted
from rl_sync.checkpoints.snapshots import (
    latest_snapshot,
    load_snapshot,
    newest_whole,
    on_host,
    read_metadata,
    save_snapshot,
    set_aside,
    snapshot_steps,
)
from rl_sync.learning.train_state import TrainState
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree


@dataclasses.dataclass(frozen=True)
class SnapshotFolder:
    """Snapshots in a folder.

    Attributes:
      directory: the folder; it need not exist.
      processes: the trainer's processes, by their indices in their cluster.
    """

    directory: Path
    processes: Sequence[int]

    def steps(self) -> list[int]:
        """Returns the steps of the snapshots, in order."""
        return snapshot_steps(self.directory)

    def newest(self) -> int | None:
        """Returns the step of the newest snapshot, None if there is none."""
        return latest_snapshot(self.directory)

    def copied(self, state: TrainState) -> TrainState:
        """Returns a copy of a state, which outlives its donation to the next step."""
        copy: TrainState = set_aside(state) if len(self.processes) > 1 else on_host(state)
        return copy

    def save(
        self,
        step: int,
        state: TrainState,
        metadata: dict[str, Any],
        agree: Agree,
        *,
        keep: int,
        kept: Collection[int],
        keep_every_secs: float | None = None,
    ) -> None:
        """Saves a state; see `save_snapshot`."""
        save_snapshot(
            self.directory,
            step,
            state,
            metadata,
            keep=keep,
            kept=kept,
            keep_every_secs=keep_every_secs,
            processes=self.processes,
            agree=agree,
        )

    def load(
        self, step: int | None, abstract: TrainState, agree: Agree
    ) -> tuple[TrainState, dict[str, Any]]:
        """Loads a state, or with None the newest undamaged one; returns it with its metadata.

        Damaged ones that are newer are set aside. See `load_snapshot` for errors.
        """
        _, state, metadata = load_snapshot(
            self.directory, step, abstract, self.processes, agree, aside=step is None
        )
        return state, metadata

    def load_adapted(
        self, abstract: TrainState, begin: Callable[[Params, Any], TrainState], agree: Agree
    ) -> tuple[TrainState, dict[str, Any], list[str]]:
        """Loads the fields of the newest snapshot that fit; see `adapted_loading.load_adapted`.

        Args:
          begin: makes the state at the start of RL from a snapshot's parameters and metadata.

        Returns:
          The state, the snapshot's metadata, and the names of the fields that start anew.
        """
        step = agree("newest whole", lambda: newest_whole(self.directory))
        assert step is not None
        metadata = read_metadata(self.directory, step)
        state, anew = load_adapted(
            self.directory, step, abstract, lambda params: begin(params, metadata)
        )
        return state, metadata, anew

    def clear(self) -> None:
        """Deletes all snapshots."""
        shutil.rmtree(self.directory, ignore_errors=True)
