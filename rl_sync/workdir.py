"""The work directory of a run: the names of its files and folders.

The inside of a snapshot is described in `rl_sync.checkpoints.snapshots`, that of a folder of
published weights in `rl_sync.weights.versions`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


def snapshot_name(step: int) -> str:
    """Returns the name of the folder of a trainer step's snapshot, in the folder of snapshots."""
    return f"snapshot_{step:08d}"


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a run's files and folders, whether they exist or not; a path itself.

    Attributes:
      path: the directory.
    """

    path: str | os.PathLike[str]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return os.fspath(self.path)

    def _at(self, *names: str) -> Path:
        return Path(self.path, *names)

    @property
    def config(self) -> Path:
        """The resolved config, from which every process of the run reads its settings."""
        return self._at("config.json")

    @property
    def lock(self) -> Path:
        """Held by the launcher while the run goes on; holds its process id."""
        return self._at(".lock")

    @property
    def secret(self) -> Path:
        """The secret of the run's own processes; see `rl_sync.cluster.secret`."""
        return self._at(".secret")

    @property
    def snapshots(self) -> Path:
        """Snapshots of the trainer."""
        return self._at("checkpoints")

    @property
    def best(self) -> Path:
        """The step of the best snapshot; see `rl_sync.checkpoints.best_snapshot`."""
        return self.snapshots / "best.json"

    @property
    def sft_snapshots(self) -> Path:
        """Snapshots of SFT, while there are no others."""
        return self.snapshots / "sft"

    @property
    def weights(self) -> Path:
        """Published versions, where they travel by checkpoint and `sync.directory` is not set."""
        return self._at("weights")

    @property
    def replay(self) -> Path:
        """Directory of the record of the replay server."""
        return self._at("replay")

    @property
    def replay_backend(self) -> Path:
        """The replay server that the run has, and why it has the embedded one."""
        return self.replay / "backend.json"

    @property
    def logs(self) -> Path:
        """Output of the processes."""
        return self._at("logs")

    def log(self, process: str) -> Path:
        """Output of one process, such as `trainer`, `trainer/1` or `replay`."""
        return self.logs / f"{process.replace('/', '.')}.log"

    @property
    def spans(self) -> Path:
        """Spans, one file a role; see `rl_sync.records.spans`."""
        return self._at("spans")

    def spans_of(self, role: str) -> Path:
        """Spans of one role."""
        return self.spans / f"{role}.jsonl"

    @property
    def metrics(self) -> Path:
        """Metrics of each step; see `rl_sync.records.metrics`."""
        return self._at("metrics.jsonl")

    @property
    def tensorboard(self) -> Path:
        """The same metrics for TensorBoard."""
        return self._at("tensorboard")

    @property
    def backends(self) -> Path:
        """Ids by which other systems know the run; see `rl_sync.records.backends`."""
        return self._at("backends")

    @property
    def versions(self) -> Path:
        """Versions of packages that the run began with; see `rl_sync.records.run_outcome`."""
        return self._at("versions.json")

    @property
    def outcome(self) -> Path:
        """The end of the run; see `rl_sync.records.run_outcome`."""
        return self._at("outcome.json")

    @property
    def ledger(self) -> Path:
        """Every change of a lease; see `rl_sync.checkpoints.ledger`."""
        return self._at("ledger.jsonl")

    @property
    def consumed(self) -> Path:
        """The groups that each trainer step has trained on; see `rl_sync.checkpoints.ledger`."""
        return self._at("consumed.jsonl")

    @property
    def resumed(self) -> Path:
        """The steps at which the run went on, and the changes of its settings."""
        return self._at("resumed.jsonl")

    @property
    def timeline(self) -> tuple[Path, Path]:
        """The run's picture, as PNG and as SVG."""
        return self._at("timeline.png"), self._at("timeline.svg")

    @property
    def judgements(self) -> Path:
        """Judgements of completions, with their reasons."""
        return self._at("judgements.jsonl")

    @property
    def rollouts(self) -> Path:
        """Completions that were trained on; see `rl_sync.records.rollout_records`."""
        return self._at("rollouts")

    @property
    def usage(self) -> Path:
        """CPU time and memory of each process; see `rl_sync.records.usage`."""
        return self._at("usage")

    @property
    def restarts(self) -> Path:
        """Every restart of a role; see `rl_sync.records.alarms`."""
        return self._at("restarts.jsonl")

    @property
    def trace(self) -> Path:
        """The run's spans for a trace viewer."""
        return self._at("trace.json")

    @property
    def earlier(self) -> Path:
        """Earlier files: one folder for each time that something was moved aside."""
        return self._at("earlier")

    @property
    def of_attempt(self) -> tuple[Path, ...]:
        """Files that an attempt at a run leaves behind, and the next one moves aside."""
        folders = (self.snapshots, self.weights, self.replay, self.logs, self.spans, self.usage)
        records = (self.metrics, self.tensorboard, self.ledger, self.consumed, self.resumed)
        others = (self.judgements, self.rollouts, self.restarts, self.backends)
        ends = (self.versions, self.outcome)
        return self.config, *folders, *records, *others, *ends
