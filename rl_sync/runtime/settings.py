"""The one place where a config becomes frozen, validated records.

`RunSettings.from_config` takes the nested dict of a resolved ml_collections config. Below it
nothing sees a ConfigDict, and nothing has defaults of its own: they stand in `configs/base.py`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from rl_sync.actors.batching import Batching
from rl_sync.actors.events import MasterSettings
from rl_sync.actors.objective import AlgorithmConfig
from rl_sync.actors.optimizer import OptimizerConfig
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.sampling import Sampling
from rl_sync.runtime.model_settings import ModelSettings
from rl_sync.runtime.records import ConfigError, build, one_of, require
from rl_sync.runtime.rollout_settings import RolloutSettings
from rl_sync.schedule import MODES, SyncSchedule, resolve
from rl_sync.tasks.catalog import TaskConfig, load_task
from rl_sync.tasks.pretrained import TokenizerConfig
from rl_sync.tasks.task import Task

TRANSFERS = ("collective", "checkpoint")
BACKENDS = ("reverb", "embedded")


@dataclasses.dataclass(frozen=True)
class WarmUpSettings:
    """`config.warm_up`: supervised steps on the task's demonstrations before the first rollout.

    Attributes:
      steps: 0 for no warm-up.
      batch_size: demonstrations a step.
      probe_every_steps, probe_problems: how often greedy accuracy is measured, and on how many
        held-out problems.
    """

    steps: int
    batch_size: int
    probe_every_steps: int
    probe_problems: int

    def __post_init__(self) -> None:
        require(self.steps >= 0, f"warm_up.steps must be at least 0, not {self.steps}.")
        for name in ("batch_size", "probe_every_steps", "probe_problems"):
            value = getattr(self, name)
            require(value >= 1, f"warm_up.{name} must be at least 1, not {value}.")


@dataclasses.dataclass(frozen=True)
class TrainerSettings:
    """`config.trainer`.

    Attributes:
      steps: trainer steps of the run.
      groups_per_step: groups (prompts) that a step consumes.
      group_size: completions a prompt.
      evaluate_every_steps: greedy held-out accuracy every so many steps; 0 for the ends only.
      evaluation_problems: the most held-out problems that an evaluation uses.
      batching: how trajectories are laid out in rows: `padded`, `bucketed` or `packed`; see
        `Batching`.
      microbatch_rows: rows of an update whose activations are in memory at once; 0 for all.
      logits_bytes: memory that logits may take at once in the loss.
    """

    steps: int
    groups_per_step: int
    group_size: int
    evaluate_every_steps: int
    evaluation_problems: int
    batching: str
    microbatch_rows: int
    logits_bytes: int

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "groups_per_step",
            "group_size",
            "evaluation_problems",
            "logits_bytes",
        ):
            value = getattr(self, name)
            require(value >= 1, f"trainer.{name} must be at least 1, not {value}.")
        require(
            self.group_size >= 2,
            f"trainer.group_size must be at least 2, not {self.group_size}: a group's completions"
            " are compared with each other.",
        )
        require(self.evaluate_every_steps >= 0, "trainer.evaluate_every_steps must be >= 0.")


@dataclasses.dataclass(frozen=True)
class SyncSettings:
    """`config.sync`: see `rl_sync.schedule`; None stands for the mode's own."""

    mode: str
    interval: int | None
    offset: int | None
    max_staleness: int | None
    pull: str | None
    transfer: str | None
    verify: bool


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """`config.explorer`.

    Attributes:
      count: how many explorers; None for the least that the mode takes.
      groups_per_lease: groups that an explorer generates at once; None for its share of a batch.
    """

    count: int | None
    groups_per_lease: int | None


@dataclasses.dataclass(frozen=True)
class ReplaySettings:
    """`config.replay`.

    Attributes:
      backend: `reverb`, the real server; `embedded`, the same semantics in Python.
      port: 0 for any free one.
      address: host:port of a server that runs already and has the table of `replay_tables`; None
        to start one.
      sampler: in which order groups leave the buffer (exact pulls: fifo).
    """

    backend: str
    port: int
    address: str | None
    sampler: str

    def __post_init__(self) -> None:
        one_of("replay.backend", self.backend, BACKENDS)
        one_of("replay.sampler", self.sampler, ("fifo", "lifo", "uniform"))


@dataclasses.dataclass(frozen=True)
class MasterProcessSettings:
    """`config.master`.

    Attributes:
      port: 0 for any free one.
      reward_workers: processes that judge; 0 judges in the master's own.
      lease_secs: a lease expires after so long without a sign of life from its explorer.
    """

    port: int
    reward_workers: int
    lease_secs: float

    def __post_init__(self) -> None:
        require(
            self.reward_workers >= 0,
            f"master.reward_workers must be at least 0, not {self.reward_workers}.",
        )


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """`config.checkpoint`: snapshots of the trainer, that a run goes on from.

    Attributes:
      every_steps: 0 for one at the end only.
      keep: how many are kept.
    """

    every_steps: int
    keep: int

    def __post_init__(self) -> None:
        require(self.every_steps >= 0, "checkpoint.every_steps must be at least 0.")
        require(self.keep >= 1, f"checkpoint.keep must be at least 1, not {self.keep}.")


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """`config.launch`: patience, in seconds.

    Attributes:
      start_secs: until a role or a server is up.
      wait_secs: the longest that a role waits for another.
      call_secs: the longest that the master takes to answer.
      master_lost_secs: a role ends itself when the master was silent for so long.
      stop_secs: from asking a role to stop to killing it.
    """

    start_secs: float
    wait_secs: float
    call_secs: float
    master_lost_secs: float
    stop_secs: float


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """A whole run, validated: each part by itself and all against each other.

    Attributes:
      task_data: the loaded task: problems, tokenizer, reward.
      others: the config's sections.
    """

    name: str
    seed: int
    workdir: str
    task: TaskConfig
    tokenizer: TokenizerConfig
    model: ModelSettings
    warm_up: WarmUpSettings
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    trainer: TrainerSettings
    rollout: RolloutSettings
    sync: SyncSettings
    explorer: ExplorerSettings
    replay: ReplaySettings
    master: MasterProcessSettings
    checkpoint: CheckpointSettings
    launch: LaunchSettings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Validates a resolved config.

        Raises:
          ConfigError: names the rule, the value, and the way out.
        """
        try:
            settings = build(cls, config, "config")
            settings._validate()
            settings.rollout.sampling(max_new_tokens=sys.maxsize, eos_ids=(0,))
            settings.model.config(vocab_size=1, max_length=1)
            settings.batching(row_tokens=1)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return settings

    def resolved(self) -> dict[str, Any]:
        """The config with everything filled in that the mode implied; makes the same settings."""
        schedule = self.schedule
        sync = dataclasses.replace(
            self.sync,
            interval=schedule.interval,
            offset=schedule.offset,
            max_staleness=schedule.max_staleness,
            pull=schedule.pull,
            transfer=self.transfer,
        )
        explorer = ExplorerSettings(self.explorers, self.groups_per_lease)
        return dataclasses.asdict(dataclasses.replace(self, sync=sync, explorer=explorer))

    def _validate(self) -> None:
        mode = MODES.get(self.sync.mode)
        schedule = self.schedule
        assert mode is not None, "the schedule has checked the mode"
        count, least, most = self.explorers, mode.least_explorers, mode.most_explorers
        require(
            count >= least and (most is None or count <= most),
            f"explorer.count={count} does not fit sync.mode={self.sync.mode}, which takes "
            + (f"{least}" if least == most else f"{least} or more")
            + (": for several explorers use sync.mode=multi_explorer." if most == 1 else "."),
        )
        one_of("sync.transfer", self.transfer, TRANSFERS)
        require(
            count <= self.trainer.groups_per_step,
            f"explorer.count={count} explorers cannot share trainer.groups_per_step="
            f"{self.trainer.groups_per_step}: some would have nothing to generate.",
        )
        require(
            schedule.pull == "latest" or self.replay.sampler == "fifo",
            f"replay.sampler={self.replay.sampler} does not fit sync.mode={self.sync.mode}: exact"
            " pulls consume batches in their order. Use replay.sampler=fifo.",
        )
        offered = schedule.pull == "latest" and self.transfer == "checkpoint"
        require(
            self.rollout.swap == "between" or offered,
            f"rollout.swap={self.rollout.swap} needs weights that an explorer takes when it likes,"
            f" but sync.pull={schedule.pull} over sync.transfer={self.transfer} has none: use"
            " sync.mode=asynchronous or multi_explorer, or rollout.swap=between.",
        )
        updates = self.optimizer.updates_per_batch
        require(
            self.trainer.groups_per_step % updates == 0,
            f"trainer.groups_per_step={self.trainer.groups_per_step} groups cannot be shared evenly"
            f" by optimizer.updates_per_batch={updates} updates: use a divisor.",
        )
        lease = self.explorer.groups_per_lease
        require(
            lease is None or lease >= 1,
            f"explorer.groups_per_lease must be at least 1, not {lease}.",
        )

    @property
    def schedule(self) -> SyncSchedule:
        """The schedule that the mode and the sync settings resolve to."""
        sync = self.sync
        return resolve(sync.mode, sync.interval, sync.offset, sync.max_staleness, sync.pull)

    @property
    def explorers(self) -> int:
        """How many explorers take part."""
        return self.explorer.count or (
            MODES[self.sync.mode].least_explorers if self.explorer.count is None else 0
        )

    @property
    def transfer(self) -> str:
        """How weights travel."""
        return self.sync.transfer or MODES[self.sync.mode].transfer

    @property
    def groups_per_lease(self) -> int:
        """The most groups that an explorer generates at once."""
        share = math.ceil(self.trainer.groups_per_step / self.explorers)
        return share if self.explorer.groups_per_lease is None else self.explorer.groups_per_lease

    @property
    def slots(self) -> int:
        """The most sequences that an explorer decodes at once."""
        return self.rollout.slots or self.groups_per_lease * self.trainer.group_size

    @property
    def roles(self) -> list[str]:
        """The roles that train, by name."""
        return [f"explorer{i}" for i in range(1, self.explorers + 1)] + ["trainer"]

    def master_settings(self) -> MasterSettings:
        """What the master actor needs."""
        return MasterSettings(
            schedule=self.schedule,
            steps=self.trainer.steps,
            groups_per_step=self.trainer.groups_per_step,
            explorers=self.explorers,
            groups_per_lease=self.groups_per_lease,
            lease_secs=self.master.lease_secs,
        )

    def model_config(self, task: Task) -> ModelConfig:
        """The model for a task's vocabulary and lengths.

        Raises:
          ConfigError: `model.path` is no checkpoint of ours, or does not fit the task.
        """
        return self.model.config(task.tokenizer.vocab_size, task.row_tokens)

    def batching(self, row_tokens: int) -> Batching:
        """How the trainer's batches are laid out, of trajectories of at most `row_tokens`."""
        return Batching(
            kind=self.trainer.batching,
            trajectories=self.trainer.groups_per_step * self.trainer.group_size,
            row_tokens=row_tokens,
            updates=self.optimizer.updates_per_batch,
            microbatch_rows=self.trainer.microbatch_rows,
        )

    def sampling(self, task: Task) -> Sampling:
        """How explorers sample completions.

        Raises:
          ConfigError: the task's completions are shorter than the settings ask for.
        """
        try:
            return self.rollout.sampling(task.max_completion_tokens, tuple(task.tokenizer.eos_ids))
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def engine(self, task: Task) -> Engine:
        """What an explorer generates with."""
        model = lora.merged_config(self.model_config(task))
        return self.rollout.engine(model, self.slots, task.tokenizer.decode)

    def load_task(self) -> Task:
        """Loads the problems and their tokenizer.

        Raises:
          ConfigError: they cannot be read (the message says where), do not fit the model, or the
            warm-up has nothing to imitate.
        """
        path = self.tokenizer.path or self.model.path
        try:
            task = load_task(self.task, dataclasses.replace(self.tokenizer, path=path), self.seed)
        except (ValueError, OSError) as error:
            raise ConfigError(str(error)) from error
        self.model_config(task)
        self.sampling(task)
        require(
            not self.warm_up.steps or len(task.demonstrations) > 0,
            " ".join(
                [
                    f"warm_up.steps={self.warm_up.steps}, but the task has no demonstrations to"
                    " imitate: use warm_up.steps=0 to start without.",
                    *task.notes,
                ]
            ),
        )
        return task
