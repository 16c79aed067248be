"""Holds a run's settings: the config's sections in one record, and values derived from them.

The records declare the default, the bounds and the meaning of each setting. `configs/base.py` makes
the config from them, and `read_settings` makes them from a config.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.environments.environment_catalog import branches
from rl_sync.environments.environment_settings import SEGMENT, EnvironmentSettings
from rl_sync.learning.learning_settings import CriticConfig, OptimizerConfig, SftConfig
from rl_sync.models.config import Quantization
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.records.alarms import AlarmLimits
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.role_names import TRAINER, explorer_name, is_explorer
from rl_sync.schedule import MODES, SyncSchedule, resolve
from rl_sync.setting import check, section, setting
from rl_sync.settings.evaluation_settings import EXPLORERS, EvaluationSettings
from rl_sync.settings.explorer_settings import ExplorerSettings
from rl_sync.settings.launch_settings import LaunchSettings, MasterProcessSettings
from rl_sync.settings.mesh_settings import ShardingSettings
from rl_sync.settings.model_settings import ModelSettings
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.settings.records import ConfigValues
from rl_sync.settings.replay_settings import ExperienceSettings, ReplaySettings
from rl_sync.settings.rollout_settings import RolloutSettings
from rl_sync.settings.sync_settings import SyncSettings
from rl_sync.settings.teacher_settings import TeacherSettings
from rl_sync.settings.trainer_settings import SnapshotSettings, TrainerSettings
from rl_sync.tasks import mixture
from rl_sync.tasks.curriculum import CurriculumSettings
from rl_sync.tasks.mixture import MixtureConfig
from rl_sync.tasks.task_catalog import TaskConfig
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.transfer import TRANSFERS
from rl_sync.weights.deltas.changed_share import WORTHWHILE, expected_share
from rl_sync.workdir import Workdir

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from rl_sync.models.sharding import Layout


_LEAST_EVALUATION_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Settings of a whole run. Sections validate themselves; `read_settings` validates them all."""

    name: str = setting(
        "run", "Name of the run; part of the name of its work directory.", free="always"
    )
    seed: int = setting(0, "Seed of all randomness of the run.", least=0)
    workdir: str = setting(
        None,
        "Directory that the run writes to; with that of an earlier run it goes on where that was.",
        implied="runs/NAME-MODE-TIME",
        free="always",
        is_path=True,
    )
    task: TaskConfig = section(TaskConfig, "Problems, and the lengths of prompts and completions.")
    tokenizer: TokenizerConfig = section(TokenizerConfig, "Tokenizer, and its chat template.")
    environment: EnvironmentSettings = section(
        EnvironmentSettings, "Environment of episodes of several turns."
    )
    curriculum: CurriculumSettings = section(
        CurriculumSettings, "Choice of the prompts to train on, by what became of them before."
    )
    model: ModelSettings = section(
        ModelSettings, "Policy, from a checkpoint or from a random start."
    )
    sft: SftConfig = section(
        SftConfig,
        "Supervised fine-tuning (SFT) on the task's demonstrations, before the first rollout.",
        free="after_sft",
    )
    algorithm: Algorithm = section(
        Algorithm,
        "Loss of a trainer step: a named algorithm, and changes to it.",
        implied="as in the algorithm of that name",
    )
    critic: CriticConfig = section(
        CriticConfig, "Critic of algorithms whose advantages are taken from values."
    )
    teacher: TeacherSettings = section(
        TeacherSettings, "Teacher that the policy is distilled from."
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
        free="always",
    )
    replay: ReplaySettings = section(ReplaySettings, "Replay buffer between explorers and trainer.")
    experience: ExperienceSettings = section(
        ExperienceSettings, "Groups on their way from judging to training."
    )
    master: MasterProcessSettings = section(
        MasterProcessSettings,
        "Master, which leases prompts and has completions judged.",
        free="always",
    )
    reward: RewardSettings = section(
        RewardSettings, "Judging of completions; `task.reward` says by which reward."
    )
    evaluation: EvaluationSettings = section(
        EvaluationSettings,
        "Evaluations on held-out problems, before, during and after the run.",
        free="always",
    )
    checkpoint: SnapshotSettings = section(
        SnapshotSettings, "Snapshots of the trainer, from which a run goes on.", free="always"
    )
    observe: ObserveSettings = section(
        ObserveSettings, "Records of what the policy writes, and alarms.", free="always"
    )
    launch: LaunchSettings = section(
        LaunchSettings, "Start, watch and end of the run's processes.", free="always"
    )

    def __post_init__(self) -> None:
        check(self, "")

    def resolved(self) -> ConfigValues:
        """Returns the config with all values that the mode implies; it gives the same settings."""
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
        """Returns the mesh of the role with a name."""
        return (self.trainer if role == TRAINER else self.explorer).mesh.shape

    def processes_of(self, role: str) -> int:
        """Returns the number of processes of the role with a name."""
        return (self.trainer if role == TRAINER else self.explorer).processes

    def layout(self, role: str, mesh: Mesh) -> Layout:
        """Returns the layout of the role with a name on the devices of its mesh.

        Raises:
          ConfigError: `model.path` is not a checkpoint that can be read.
        """
        from rl_sync.models.sharding import Layout  # Late: it imports JAX.

        sharding = self.sharding
        layout = Layout(mesh, sharding.engine_rules if is_explorer(role) else sharding.rules)
        return layout if mesh.size == 1 else layout.grouped(self.model.kv_heads())

    @property
    def trainer_layout(self) -> Layout:
        """The layout of the trainer's arrays on its mesh, without devices, for planning."""
        from rl_sync.models.sharding import Layout

        return Layout(self.trainer.mesh.shape.abstract(), self.sharding.rules)

    @property
    def explorer_layout(self) -> Layout:
        """The layout of an explorer's arrays on its mesh, without devices, for planning."""
        from rl_sync.models.sharding import Layout

        return Layout(self.explorer.mesh.shape.abstract(), self.sharding.engine_rules)

    @functools.cached_property
    def schedule(self) -> SyncSchedule:
        """The schedule that the mode and the sync settings resolve to."""
        sync = self.sync
        return resolve(sync.mode, sync.interval, sync.offset, sync.max_staleness, sync.pull)

    @property
    def explorers(self) -> int:
        """The number of explorers; 0 if there is nothing to generate."""
        if not self.algorithm.generates:
            return 0
        least, count = MODES[self.sync.mode].least_explorers, self.explorer.count
        return least if count is None else count

    @property
    def mixture(self) -> MixtureConfig | None:
        """The sets of the task and their weights; None if it has no sets."""
        return self.task.mixture if self.task.name == mixture.NAME else None

    @property
    def plays(self) -> bool:
        """True if an environment answers the policy."""
        return self.environment.name is not None

    @property
    def has_segments(self) -> bool:
        """True if a trajectory may have several segments."""
        name, rewrites = self.environment.name, self.environment.rewrites == SEGMENT
        has_template = self.tokenizer.path is not None or self.model.path is not None
        return name is not None and ((has_template and rewrites) or branches(name))

    @property
    def transfer(self) -> str:
        """The kind of weight transfer."""
        if not self.algorithm.generates:
            return "checkpoint"  # There is no transfer.
        return self.sync.transfer or MODES[self.sync.mode].transfer

    @property
    def deltas(self) -> bool:
        """True if explorers get what changed since the version that they have."""
        able = TRANSFERS[self.transfer].has_deltas and self.explorers > 0
        if self.sync.delta != "auto" or not able:
            return able and self.sync.delta == "on"
        if not self.sync.verify or self.launch.colocate or self.model.lora.rank:
            return False
        return expected_share(self.optimizer.learning_rate, self.explorer_dtype) <= WORTHWHILE

    def on_only_gpu(self) -> RunSettings:
        """Returns the settings of the run on a machine's only GPU: the roles take turns on it.

        `launch.colocate` stays if it is set, and where they cannot be in one process.
        """
        if self.launch.colocate is not None or not self.may_be_colocated:
            return self
        launch = dataclasses.replace(self.launch, colocate=True, share_devices=True)
        return dataclasses.replace(self, launch=launch)

    @property
    def takes_turns(self) -> bool:
        """True if explorers rest while the trainer trains on devices that they share."""
        return self.launch.share_devices and self.schedule.staleness_bound == 0

    @property
    def merges_in_place(self) -> bool:
        """True if explorers let go of their weights before adapters are merged into others."""
        is_exact = self.schedule.pull == "exact"  # Then no rollout needs older weights again.
        return self.model.lora.rank > 0 and self.takes_turns and is_exact and not self.plays

    @property
    def may_be_colocated(self) -> bool:
        """True if trainer and explorers could also be threads of one process."""
        return (
            self.explorers > 0
            and not self.launch.elsewhere
            and self.trainer.processes == self.explorer.processes == 1
            and not TRANSFERS[self.transfer].needs_processes
        )

    def weights_directory(self, workdir: Workdir) -> str:
        """Returns the directory of policy versions for transfer by checkpoint."""
        if self.sync.directory is None:
            return str(workdir.weights)
        return f"{self.sync.directory.rstrip('/')}/{Path(workdir).name}"

    @property
    def groups_generated(self) -> int:
        """The number of groups generated for a trainer step, which may use only some of them."""
        return math.ceil(self.trainer.groups_per_step * self.algorithm.over_sampling)

    @property
    def groups_per_lease(self) -> int:
        """The maximum number of groups that an explorer generates at once."""
        share = math.ceil(self.groups_generated / max(1, self.explorers))
        return share if self.explorer.groups_per_lease is None else self.explorer.groups_per_lease

    @property
    def groups_at_once(self) -> int:
        """The maximum number of groups in an explorer's lease.

        With streaming it is enough groups to fill the explorer's slots, plus one more group, which
        waits for free slots.
        """
        if not self.rollout.streaming:
            return self.groups_per_lease
        return self.slots // self._rows_of_a_group + 1

    @property
    def carries_over(self) -> bool:
        """True if explorers may leave groups unfinished while they begin others."""
        return self.rollout.streaming or self.rollout.budget_tokens > 0

    @property
    def groups_ahead(self) -> int:
        """The maximum number of groups being generated or in flight, but not yet trained on."""
        return self.schedule.batches_ahead * self.groups_generated

    @property
    def slots(self) -> int:
        """The maximum number of sequences that an explorer decodes at once."""
        return self.rollout.slots or self.groups_per_lease * self._rows_of_a_group

    @property
    def _rows_of_a_group(self) -> int:
        return self.trainer.group_size + self.algorithm.needs_baselines

    @property
    def compute_dtype(self) -> str:
        """The dtype of computations in the trainer's blocks."""
        return self.trainer.compute_dtype or self.model.dtype

    @property
    def explorer_dtype(self) -> str:
        """The dtype of parameters and computations in explorers."""
        return self.explorer.dtype or self.model.dtype

    @property
    def quantization(self) -> Quantization | None:
        """The dtype of explorers' quantized kernels; None if they are not quantized."""
        chosen = self.explorer.quantization
        return None if chosen == "none" else cast(Quantization, chosen)

    @property
    def roles(self) -> list[str]:
        """The names of the explorers and the trainer."""
        return [*map(explorer_name, range(1, self.explorers + 1)), TRAINER]

    @property
    def is_joint(self) -> bool:
        """True if trainer and explorers are processes of one cluster."""
        return TRANSFERS[self.transfer].is_joint and not self.launch.colocate

    @property
    def hands_over(self) -> bool:
        """True if versions are handed over within a process that both roles share."""
        return bool(TRANSFERS[self.transfer].is_joint and self.launch.colocate)

    @property
    def regenerates_buffered(self) -> bool:
        """True if buffered groups are generated again once explorers have died.

        All explorers of a cluster come to each version under exact pulls, so each must have work
        that needs it.
        """
        return self.meets

    @property
    def is_elastic(self) -> bool:
        """True if the run can continue without one of its explorers for a while."""
        return not (self.is_joint or self.launch.colocate)

    @property
    def evaluates_on_explorers(self) -> bool:
        """True if explorers generate the completions of evaluations between steps."""
        if self.evaluation.by is not None:
            return self.evaluation.by == EXPLORERS
        return self.schedule.pull == "latest" and not self.checkpoint.best and self.explorers > 0

    @property
    def explorers_evaluate_every(self) -> int:
        """Trainer steps between two evaluations by explorers; 0 for none."""
        return self.evaluation.every_steps if self.evaluates_on_explorers else 0

    @property
    def evaluation_slots(self) -> int:
        """Maximum number of sequences that an explorer decodes at once for an evaluation."""
        if self.evaluation.slots is not None:
            return self.evaluation.slots
        quarter = 1 << max(0, (self.slots // 4).bit_length() - 1)
        return min(self.slots, max(_LEAST_EVALUATION_SLOTS, quarter))

    @property
    def alarm_limits(self) -> AlarmLimits:
        """The settings that alarms depend on."""
        return AlarmLimits(
            steps=self.observe.alarm_steps,
            group_size=self.trainer.group_size,
            logprob_gap=self.algorithm.logprob_gap_alarm,
            group_mean_low=self.algorithm.group_mean_low,
            follows_rewards=self.algorithm.advantage != "none",
        )

    @property
    def meets(self) -> bool:
        """True if trainer and explorers take part in one joint transfer at each sync."""
        return self.is_joint and self.schedule.pull == "exact"
