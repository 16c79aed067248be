"""The config's small sections, as frozen records that validate themselves."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.learning.batching import SHARED_ROW_TOKENS, BatchingKind
from rl_sync.models.config import DTYPES
from rl_sync.replay.priorities import PRIORITIES
from rl_sync.replay.replay_interface import Backend
from rl_sync.replay.tables import Selector
from rl_sync.schedule import MODES, Pull
from rl_sync.setting import check, section, setting
from rl_sync.settings.launch_settings import PORT, WAIT_SECS
from rl_sync.settings.mesh_settings import ExplorerMesh, TrainerMesh
from rl_sync.transfer import TRANSFERS


@dataclasses.dataclass(frozen=True)
class TrainerSettings:
    """`config.trainer`."""

    steps: int = setting(100, "Trainer steps of the run.", least=1, free="always")
    groups_per_step: int = setting(
        64, "Groups that a trainer step consumes; a group is one prompt's completions.", least=1
    )
    group_size: int = setting(8, "Completions of each prompt.", least=1)
    batching: str = setting(
        "padded",
        "Layout of trajectories, and of SFT's demonstrations, in the rows of a batch:"
        " `padded` makes rows of maximum length, `bucketed` cuts them to the longest trajectory,"
        " `packed` puts several trajectories in a row, `shared` does so with one copy of a prompt"
        " for its completions.",
        choices=get_args(BatchingKind),
        free="always",
    )
    shared_row_tokens: int | None = setting(
        None,
        "Maximum tokens of a row with `batching=shared`: long rows share more prompts, short ones"
        " make attention cheaper.",
        least=1,
        implied=f"those of two trajectories, but at least {SHARED_ROW_TOKENS}",
        free="always",
    )
    microbatch_rows: int = setting(
        0,
        "Rows of an update whose activations are in memory at once; 0 for all.",
        least=0,
        free="always",
    )
    logits_bytes: int = setting(
        64 << 20,
        "Maximum memory that logits take at once in the loss, on each device.",
        unit="bytes",
        least=1,
        free="always",
    )
    offload_reference: bool = setting(
        False,
        "Keeps the reference model in the host's memory, except while it computes logprobs.",
        free="always",
    )
    offload_optimizer: bool = setting(
        False,
        "Keeps the optimizer's state, the critic's too, in the host's memory, except while it is"
        " updated.",
        free="always",
    )
    compute_dtype: str | None = setting(
        None,
        "Dtype that the trainer's blocks compute in; its parameters and the optimizer's state are"
        " float32 anyway.",
        choices=DTYPES,
        implied="model.dtype",
    )
    processes: int = setting(
        1,
        "Processes of the trainer, each with an equal part of its devices.",
        least=1,
        free="always",
    )
    mesh: TrainerMesh = section(
        TrainerMesh,
        "Sizes of the trainer's mesh, over the devices of all its processes.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "trainer")


@dataclasses.dataclass(frozen=True)
class SyncSettings:
    """`config.sync`: see `rl_sync.schedule`."""

    mode: str = setting(
        "one_step_off_policy",
        "Named schedule of when the trainer's weights reach the explorers.",
        choices=tuple(MODES),
    )
    interval: int | None = setting(
        None, "Trainer steps between two publications of weights.", least=1, implied="the mode's"
    )
    offset: int | None = setting(
        None,
        "Batches that explorers run ahead of the trainer.",
        least=0,
        implied="the mode's",
    )
    max_staleness: int | None = setting(
        None,
        "Maximum staleness, in trainer steps: the trainer drops groups that are older.",
        least=0,
        implied="the mode's, from interval and offset",
    )
    pull: str | None = setting(
        None,
        "Version that explorers take: `exact`, the one that the schedule names, or `latest`, the"
        " newest.",
        choices=get_args(Pull),
        implied="the mode's",
    )
    transfer: str | None = setting(
        None,
        "How weights reach the explorers: `collective` between the devices of one"
        " cluster, `server` point to point, `checkpoint` through files.",
        choices=tuple(TRANSFERS),
        implied="the mode's",
        free="always",
    )
    directory: str | None = setting(
        None,
        "Path that all processes reach, or `gs://bucket/…`: versions that go by checkpoint are"
        " written there, in a directory of the run's name.",
        implied="the work directory",
        free="always",
        is_path=True,
    )
    verify: bool = setting(
        True,
        "Compares a digest of the weights that arrived with that of those published.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "sync")


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """`config.explorer`."""

    count: int | None = setting(
        None,
        "Explorers of the run.",
        least=0,
        implied="the fewest that the mode takes",
        free="always",
    )
    groups_per_lease: int | None = setting(
        None,
        "Maximum groups of a lease. Ignored with `rollout.streaming`, where `rollout.slots` is the"
        " limit.",
        least=1,
        implied="an explorer's even share of a batch",
        free="always",
    )
    dtype: str | None = setting(
        None,
        "Dtype that parameters are cast to when they are published, and that explorers compute and"
        " cache in.",
        choices=DTYPES,
        implied="model.dtype",
    )
    processes: int = setting(
        1,
        "Processes of each explorer, each with an equal part of its devices.",
        least=1,
        free="always",
    )
    mesh: ExplorerMesh = section(
        ExplorerMesh,
        "Sizes of each explorer's mesh, over the devices of all its processes.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "explorer")


@dataclasses.dataclass(frozen=True)
class ExperienceSettings:
    """`config.experience`."""

    pipeline: str | None = setting(
        None,
        "Functions between judging and training, `module:function` or `path/to/file.py:function`,"
        " separated by commas, with options as in `file.py:function(most=3)`: each gets a step's"
        " groups, and may leave some out, change rewards, and note metrics.",
        implied="none",
    )

    def __post_init__(self) -> None:
        check(self, "experience")


@dataclasses.dataclass(frozen=True)
class ReplaySettings:
    """`config.replay`."""

    backend: str = setting(
        "auto",
        "Server of the buffer: `reverb`, the real one, `embedded`, the same semantics in Python, or"
        " `auto`: Reverb, and the embedded one where Reverb's environment cannot be had.",
        choices=("auto", *get_args(Backend)),
        free="always",
    )
    port: int = setting(0, "Port of the replay server; 0 for any free one.", **PORT, free="always")
    address: str | None = setting(
        None,
        "HOST:PORT of a replay server that runs already and has the run's table.",
        implied="the launcher starts one",
        free="always",
    )
    sampler: str = setting(
        "fifo",
        "Which group leaves the buffer next: the oldest, the newest, any, one drawn in proportion"
        " to its priority, or the one of the highest or the lowest; exact pulls need `fifo`.",
        choices=get_args(Selector),
    )
    priority: str = setting(
        "variance",
        "Priority of a group: the variance of its rewards, how far they are from their mean, its"
        " mean reward, the version that generated it, or the mean length of its completions.",
        choices=tuple(PRIORITIES),
    )
    priority_exponent: float = setting(
        1.0,
        "With `replay.sampler=prioritized` a group is drawn in proportion to priority ** exponent.",
        least=0.0,
    )
    times_sampled: int = setting(
        1,
        "Most trainer steps that train on a group, all within `sync.max_staleness`; exact pulls"
        " need 1.",
        unit="steps",
        least=1,
    )
    max_size: int | None = setting(
        None,
        "Groups that the buffer holds; explorers wait while it is full. Exact pulls need the"
        " default.",
        unit="groups",
        least=1,
        implied="as many as the schedule lets explorers be ahead",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "replay")


@dataclasses.dataclass(frozen=True)
class MasterProcessSettings:
    """`config.master`."""

    port: int = setting(0, "Port of the master; 0 for any free one.", **PORT)
    lease_secs: float = setting(
        60.0,
        "Time without a sign of life from an explorer after which its leases expire, and others"
        " get its prompts.",
        **WAIT_SECS,
    )

    def __post_init__(self) -> None:
        check(self, "master")


@dataclasses.dataclass(frozen=True)
class SnapshotSettings:
    """`config.checkpoint`."""

    every_steps: int = setting(
        50, "Trainer steps between two snapshots; 0 for one at the end only.", least=0
    )
    keep: int = setting(3, "Newest snapshots that are kept.", least=1)
    best: str | None = setting(
        None,
        "Metric of evaluations, such as accuracy or pass@8: a snapshot is also taken at each"
        " evaluation, and the one with the greatest value is kept.",
        implied="no snapshot is kept for its metric",
    )

    def __post_init__(self) -> None:
        check(self, "checkpoint")
