"""The one place where a config becomes frozen, validated records.

`RunSettings.from_config` takes the nested dict of a resolved ml_collections config. Below it
nothing sees a ConfigDict. The records here say the default, the bounds and the meaning of each
setting; `configs/base.py` makes the config from them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_sync.actors.events import MasterSettings
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.learning.batching import Batching
from rl_sync.learning.critic import CriticConfig
from rl_sync.learning.optimizer import OptimizerConfig
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout, MeshShape
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.sampling import Sampling
from rl_sync.schedule import MODES, SyncSchedule, resolve
from rl_sync.setting import check, section, setting
from rl_sync.settings import contradictions, home
from rl_sync.settings.algorithm import complete, require_demonstrations
from rl_sync.settings.launch import LaunchSettings
from rl_sync.settings.meshes import ShardingSettings
from rl_sync.settings.model import ModelSettings
from rl_sync.settings.records import ConfigError, build
from rl_sync.settings.rollout import RolloutSettings
from rl_sync.settings.sections import (
    CheckpointSettings,
    ExplorerSettings,
    MasterProcessSettings,
    ReplaySettings,
    SyncSettings,
    TrainerSettings,
    WarmUpSettings,
)
from rl_sync.tasks.catalog import TaskConfig, load_task
from rl_sync.tasks.pretrained import TokenizerConfig
from rl_sync.tasks.task import Task
from rl_sync.transfer import TRANSFERS

WEIGHTS_DIR = "weights"
"""In the work directory."""

TOGETHER = "trainer+explorers"
"""The name of the one process that they share under `launch.colocate`."""


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """A whole run, validated: each part by itself and all against each other."""

    name: str = setting("run", "Name of the run; part of the name of its work directory.")
    seed: int = setting(0, "Seed of all randomness of the run.", least=0)
    workdir: str = setting(
        None,
        "Directory that the run writes to; with that of an earlier run it goes on where that was.",
        implied="runs/NAME-MODE-TIME",
    )
    task: TaskConfig = section(TaskConfig, "Problems, and the lengths of prompts and completions.")
    tokenizer: TokenizerConfig = section(TokenizerConfig, "Tokenizer, and its chat template.")
    model: ModelSettings = section(
        ModelSettings, "Policy, from a checkpoint or from a random start."
    )
    warm_up: WarmUpSettings = section(
        WarmUpSettings, "Supervised steps on the task's demonstrations, before the first rollout."
    )
    algorithm: Algorithm = section(
        Algorithm,
        "Loss of a trainer step: a named algorithm, and changes to it.",
        implied="as in the algorithm of that name",
    )
    critic: CriticConfig = section(
        CriticConfig, "Critic of algorithms whose advantages are taken from values."
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "Optimizer and learning rates.")
    trainer: TrainerSettings = section(
        TrainerSettings, "Steps of the trainer, its batches, memory and processes."
    )
    rollout: RolloutSettings = section(
        RolloutSettings, "Sampling of completions, and the engine that decodes them."
    )
    sync: SyncSettings = section(
        SyncSettings, "Schedule by which weights reach explorers, and their way there."
    )
    explorer: ExplorerSettings = section(
        ExplorerSettings, "Explorers, their leases, dtype and processes."
    )
    sharding: ShardingSettings = section(
        ShardingSettings,
        "Mesh axes (data, fsdp, tensor) of each logical axis, separated by commas. Where several"
        " axes of one array claim a mesh axis, the one that comes first here has it; what does not"
        " divide evenly is not cut.",
    )
    replay: ReplaySettings = section(ReplaySettings, "Replay buffer between explorers and trainer.")
    master: MasterProcessSettings = section(
        MasterProcessSettings, "Master, which leases prompts and has completions judged."
    )
    checkpoint: CheckpointSettings = section(
        CheckpointSettings, "Snapshots of the trainer, from which a run goes on."
    )
    launch: LaunchSettings = section(LaunchSettings, "Start, watch and end of the run's processes.")

    def __post_init__(self) -> None:
        check(self, "")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Validates a resolved config.

        Raises:
          ConfigError: names the rule, the value, and the way out.
        """
        try:
            settings = build(cls, complete(home.expand(config)), "config")
            contradictions.check(settings)
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
        explorer = dataclasses.replace(
            self.explorer,
            count=self.explorers,
            groups_per_lease=self.groups_per_lease,
            dtype=self.explorer_dtype,
        )
        trainer = dataclasses.replace(self.trainer, compute_dtype=self.compute_dtype)
        return dataclasses.asdict(
            dataclasses.replace(self, sync=sync, explorer=explorer, trainer=trainer)
        )

    def mesh_of(self, role: str) -> MeshShape:
        """The mesh of a role, by its name."""
        return (self.trainer if role == "trainer" else self.explorer).mesh.shape

    def processes_of(self, role: str) -> int:
        """How many processes a role has, by its name."""
        return (self.trainer if role == "trainer" else self.explorer).processes

    @property
    def trainer_layout(self) -> Layout:
        """How the trainer's arrays lie on its mesh, without devices: to plan with."""
        return Layout(self.trainer.mesh.shape.abstract(), self.sharding.rules)

    @property
    def explorer_layout(self) -> Layout:
        """How an explorer's arrays lie on its mesh, without devices: to plan with."""
        return Layout(self.explorer.mesh.shape.abstract(), self.sharding.rules)

    @property
    def schedule(self) -> SyncSchedule:
        """The schedule that the mode and the sync settings resolve to."""
        sync = self.sync
        return resolve(sync.mode, sync.interval, sync.offset, sync.max_staleness, sync.pull)

    @property
    def explorers(self) -> int:
        """How many explorers take part; none where there is nothing to generate."""
        if self.algorithm.imitates:
            return 0
        return self.explorer.count or (
            MODES[self.sync.mode].least_explorers if self.explorer.count is None else 0
        )

    @property
    def transfer(self) -> str:
        """How weights travel."""
        if self.algorithm.imitates:
            return "checkpoint"  # Nothing travels.
        return self.sync.transfer or MODES[self.sync.mode].transfer

    def weights_directory(self, workdir: Path) -> str:
        """Where versions go that travel by checkpoint."""
        if self.sync.directory is None:
            return str(workdir / WEIGHTS_DIR)
        return f"{self.sync.directory.rstrip('/')}/{workdir.name}"

    @property
    def groups_generated(self) -> int:
        """Groups that are generated for a trainer step, of which it trains on some or all."""
        return math.ceil(self.trainer.groups_per_step * self.algorithm.over_sampling)

    @property
    def groups_per_lease(self) -> int:
        """The most groups that an explorer generates at once."""
        share = math.ceil(self.groups_generated / max(1, self.explorers))
        return share if self.explorer.groups_per_lease is None else self.explorer.groups_per_lease

    @property
    def slots(self) -> int:
        """The most sequences that an explorer decodes at once."""
        completions = self.trainer.group_size + self.algorithm.needs_baselines
        return self.rollout.slots or self.groups_per_lease * completions

    @property
    def compute_dtype(self) -> str:
        """What the trainer's blocks compute in."""
        return self.trainer.compute_dtype or self.model.dtype

    @property
    def explorer_dtype(self) -> str:
        """What explorers hold parameters in and compute in."""
        return self.explorer.dtype or self.model.dtype

    @property
    def roles(self) -> list[str]:
        """The roles that train, by name."""
        return [f"explorer{i}" for i in range(1, self.explorers + 1)] + ["trainer"]

    @property
    def is_joint(self) -> bool:
        """Whether trainer and explorers are processes of one cluster."""
        return TRANSFERS[self.transfer].is_joint and not self.launch.colocate

    @property
    def hands_over(self) -> bool:
        """Whether versions are handed over inside the process that trainer and explorers share."""
        return TRANSFERS[self.transfer].is_joint and self.launch.colocate

    @property
    def is_elastic(self) -> bool:
        """Whether the others can do without an explorer for a while."""
        return not (self.is_joint or self.launch.colocate)

    @property
    def meets(self) -> bool:
        """Whether trainer and explorers stand in the same transfer at each sync."""
        return self.is_joint and self.schedule.pull == "exact"

    def master_settings(self) -> MasterSettings:
        """What the master actor needs."""
        return MasterSettings(
            schedule=self.schedule,
            steps=self.trainer.steps,
            groups_per_step=self.groups_generated,
            explorers=self.explorers,
            groups_per_lease=self.groups_per_lease,
            lease_secs=self.master.lease_secs,
            carries_over=self.rollout.budget_tokens > 0,
            screening=self.algorithm.screening,
        )

    def model_config(self, task: Task) -> ModelConfig:
        """The model for a task's vocabulary and lengths.

        Raises:
          ConfigError: `model.path` is no checkpoint of ours, or does not fit the task.
        """
        return self.model.config(task.tokenizer.vocab_size, task.row_tokens)

    def trainer_model(self, task: Task) -> ModelConfig:
        """The model as the trainer computes it; raises what `model_config` does."""
        return dataclasses.replace(self.model_config(task), dtype=self.compute_dtype)

    def explorer_model(self, task: Task) -> ModelConfig:
        """The model as explorers compute it; raises what `model_config` does."""
        return dataclasses.replace(self.model_config(task), dtype=self.explorer_dtype)

    def batching(self, row_tokens: int) -> Batching:
        """How the trainer's batches are laid out, of trajectories of at most `row_tokens`."""
        shards = self.trainer_layout.batch_shards
        return Batching(
            kind=self.trainer.batching,
            trajectories=self.trainer.groups_per_step * self.trainer.group_size,
            row_tokens=row_tokens,
            updates=self.optimizer.updates_per_batch,
            # Rows of packed batches are as many as they have to be.
            microbatch_rows=self.trainer.microbatch_rows or (shards if shards > 1 else 0),
            with_baselines=self.algorithm.needs_baselines,
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

    def greedy_sampling(self, task: Task) -> Sampling:
        """How evaluations complete: as explorers do, but always with the likeliest token."""
        return dataclasses.replace(self.sampling(task), greedy=True)

    def engine(self, task: Task, layout: Layout) -> Engine:
        """What an explorer generates with, on its devices."""
        model = lora.merged_config(self.explorer_model(task))
        return self.rollout.engine(model, self.slots, task.tokenizer.decode, layout)

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
        require_demonstrations(task, self.warm_up, self.algorithm)
        return task
