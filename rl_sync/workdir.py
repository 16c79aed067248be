"""The work directory of a run: names of its files and folders.

The layout of a snapshot is described in `rl_sync.checkpoints.snapshots`, the layout of a folder of
published weights in `rl_sync.weights.deltas.version_files`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


def snapshot_name(step: int) -> str:
    """Returns the folder name of a trainer step's snapshot, inside the folder of snapshots."""
    return f"snapshot_{step:08d}"


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a run's files and folders, whether or not they exist. It is path-like itself.

    Attributes:
      path: path of the work directory.
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
    def engines(self) -> Path:
        """Folder of the checkpoints by which served engines get weights."""
        return self._at("engines")

    @property
    def lock(self) -> Path:
        """Lock file that the launcher holds during the run, with the launcher's process id."""
        return self._at(".lock")

    @property
    def secret(self) -> Path:
        """Secret that the run's processes share; see `rl_sync.cluster.secret`."""
        return self._at(".secret")

    @property
    def snapshots(self) -> Path:
        """Snapshots of the trainer."""
        return self._at("checkpoints")

    @property
    def batches(self) -> Path:
        """Batches since the oldest snapshot; see `rl_sync.checkpoints.batch_log`."""
        return self._at("batches")

    @property
    def published(self) -> Path:
        """Digests of the published versions."""
        return self._at("published.jsonl")

    @property
    def best(self) -> Path:
        """File with the step of the best snapshot; see `rl_sync.checkpoints.best_snapshot`."""
        return self.snapshots / "best.json"

    @property
    def sft_snapshots(self) -> Path:
        """Snapshots of SFT, until a snapshot of RL replaces them."""
        return self.snapshots / "sft"

    @property
    def weights(self) -> Path:
        """Published versions of the checkpoint transfer, if `sync.directory` is not set."""
        return self._at("weights")

    @property
    def replay(self) -> Path:
        """Folder of `replay_backend`."""
        return self._at("replay")

    @property
    def replay_backend(self) -> Path:
        """Kind of the run's replay server, and the reason if it is the embedded one."""
        return self.replay / "backend.json"

    @property
    def replay_checkpoints(self) -> Path:
        """Checkpoints of the run's replay server, from which it is started again."""
        return self.replay / "checkpoints"

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
        """Metrics of every step; see `rl_sync.records.metrics`."""
        return self._at("metrics.jsonl")

    @property
    def tensorboard(self) -> Path:
        """Metrics of every step for TensorBoard."""
        return self._at("tensorboard")

    @property
    def backends(self) -> Path:
        """Ids of the run in other systems; see `rl_sync.records.backends`."""
        return self._at("backends")

    @property
    def versions(self) -> Path:
        """Package versions at the start of the run; see `rl_sync.records.run_outcome`."""
        return self._at("versions.json")

    @property
    def outcome(self) -> Path:
        """Outcome of the run; see `rl_sync.records.run_outcome`."""
        return self._at("outcome.json")

    @property
    def ledger(self) -> Path:
        """Every change of every lease; see `rl_sync.checkpoints.ledger`."""
        return self._at("ledger.jsonl")

    @property
    def journal(self) -> Path:
        """The master's journal; see `rl_sync.roles.master.journal`."""
        return self._at("journal")

    @property
    def consumed(self) -> Path:
        """The groups that each trainer step has trained on; see `rl_sync.checkpoints.ledger`."""
        return self._at("consumed.jsonl")

    @property
    def resumed(self) -> Path:
        """Steps at which the run was resumed, and the settings that changed then."""
        return self._at("resumed.jsonl")

    @property
    def timeline(self) -> tuple[Path, Path]:
        """Timeline picture of the run, as PNG and as SVG."""
        return self._at("timeline.png"), self._at("timeline.svg")

    @property
    def judgements(self) -> Path:
        """Scores of completions, with their reasons; see `rl_sync.scoring.judging`."""
        return self._at("judgements")

    def removed(self, folder: Path) -> Path:
        """Notes on the parts of a folder that have gone; see `record_parts`, which writes them."""
        return self._at("removed", f"{folder.name}.jsonl")

    @property
    def rollouts(self) -> Path:
        """Completions that were trained on; see `rl_sync.records.rollouts.rollout_records`."""
        return self._at("rollouts")

    @property
    def usage(self) -> Path:
        """CPU time and memory of each process; see `rl_sync.records.usage`."""
        return self._at("usage")

    @property
    def tokens(self) -> Path:
        """Generated tokens, one file a role; see `rl_sync.records.tokens`."""
        return self._at("tokens")

    def tokens_of(self, role: str) -> Path:
        """Generated tokens of one role."""
        return self.tokens / f"{role}.jsonl"

    @property
    def memory(self) -> Path:
        """Path of the folder of snapshots in memory; see `rl_sync.checkpoints.memory_tier`."""
        return self._at("snapshots_in_memory")

    @property
    def chaos(self) -> Path:
        """Disturbances that the command `chaos` has made."""
        return self._at("chaos.jsonl")

    @property
    def hosts(self) -> Path:
        """Machines that have joined, with the error of their clocks."""
        return self._at("hosts.jsonl")

    @property
    def restarts(self) -> Path:
        """Every restart of a role; see `rl_sync.records.alarms`."""
        return self._at("restarts.jsonl")

    @property
    def trace(self) -> Path:
        """Spans of the run for a trace viewer."""
        return self._at("trace.json")

    @property
    def earlier(self) -> Path:
        """Files of earlier attempts, in one folder for each time that files were moved aside."""
        return self._at("earlier")

    @property
    def of_attempt(self) -> tuple[Path, ...]:
        """Files that one attempt at a run leaves, and that the next attempt moves aside."""
        state = (self.snapshots, self.memory, self.batches, self.weights, self.replay, self.journal)
        folders = (self.logs, self.spans, self.usage, self.tokens)
        records = (self.metrics, self.tensorboard, self.ledger, self.consumed, self.published)
        removed = self._at("removed")
        others = (self.judgements, self.rollouts, removed, self.backends, self.chaos)
        events = (self.restarts, self.hosts, self.resumed)
        ends = (self.versions, self.outcome)
        return self.config, *state, *folders, *records, *others, *events, *ends
