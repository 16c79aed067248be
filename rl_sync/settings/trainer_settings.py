"""The config's sections `trainer` and `checkpoint`."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.learning.learning_settings import SHARED_ROW_TOKENS, BatchingKind
from rl_sync.models.config import DTYPES
from rl_sync.setting import check, section, setting
from rl_sync.settings.mesh_settings import TrainerMesh


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
        "Keeps the optimizer's state, the critic's too, in the host's memory; updates bring it to"
        " the devices layer by layer.",
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
class SnapshotSettings:
    """`config.checkpoint`."""

    every_steps: int = setting(
        50, "Trainer steps between two snapshots; 0 for one at the end only.", least=0
    )
    keep: int = setting(3, "Newest snapshots that are kept.", least=1)
    keep_every_hours: float | None = setting(
        None,
        "Besides the newest, one snapshot of each period of so many hours is kept for good.",
        unit="hours",
        above=0,
        implied="none is kept for its age",
    )
    memory_every_steps: int = setting(
        0,
        "Trainer steps between two snapshots in memory, from which a trainer that is started again"
        " goes on sooner; 0 for none. See reliability.md.",
        least=0,
    )
    memory_directory: str = setting(
        "/dev/shm",
        "Folder in memory for these snapshots, on the trainer's machine. One that is another"
        " machine's memory outlives the trainer's.",
        is_path=True,
    )
    best: str | None = setting(
        None,
        "Metric of evaluations, such as accuracy or pass@8: a snapshot is also taken at each"
        " evaluation, and the one with the greatest value is kept.",
        implied="no snapshot is kept for its metric",
    )

    def __post_init__(self) -> None:
        check(self, "checkpoint")
