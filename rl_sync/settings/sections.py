"""The config's sections of a few fields each, as frozen records that validate themselves."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re

from rl_sync.models.config import DTYPES
from rl_sync.settings.limits import require_address, require_patience, require_port
from rl_sync.settings.meshes import ExplorerMesh, TrainerMesh, require_parts
from rl_sync.settings.records import one_of, require
from rl_sync.weights.locations import is_remote

BACKENDS = ("reverb", "embedded")
_MOST_WORKERS = 1024


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
      batching: how trajectories, and the demonstrations of the warm-up, are laid out in rows:
        `padded`, `bucketed` or `packed`; see `Batching`.
      microbatch_rows: rows of an update whose activations are in memory at once; 0 for all.
      logits_bytes: memory that logits may take at once in the loss, on each device.
      offload_reference: whether the reference model is in the host's memory but while its
        logprobs are computed.
      offload_optimizer: whether the optimizer's state, the critic's too, is in the host's memory
        but while it is updated.
      compute_dtype: what the blocks compute in; None for `model.dtype`. Parameters and the
        optimizer's state are float32 anyway.
      processes: how many processes the trainer has, each with an equal part of the devices.
      mesh: the trainer's devices, those of all its processes.
    """

    steps: int
    groups_per_step: int
    group_size: int
    evaluate_every_steps: int
    evaluation_problems: int
    batching: str
    microbatch_rows: int
    logits_bytes: int
    offload_reference: bool
    offload_optimizer: bool
    compute_dtype: str | None
    processes: int
    mesh: TrainerMesh

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
        require_parts("trainer", self.processes, self.mesh.shape)
        require(self.evaluate_every_steps >= 0, "trainer.evaluate_every_steps must be >= 0.")
        if self.compute_dtype is not None:
            one_of("trainer.compute_dtype", self.compute_dtype, DTYPES)


@dataclasses.dataclass(frozen=True)
class SyncSettings:
    """`config.sync`: see `rl_sync.schedule`; None stands for the mode's own.

    Attributes:
      directory: where versions go that travel by checkpoint, in a directory of the run's name: a
        path that all processes reach, or `gs://bucket/…`; None for the work directory.
      verify: whether explorers compare what they got with what was published.
    """

    mode: str
    interval: int | None
    offset: int | None
    max_staleness: int | None
    pull: str | None
    transfer: str | None
    directory: str | None
    verify: bool

    def __post_init__(self) -> None:
        if self.directory is None:
            return
        name = f"sync.directory={self.directory}"
        if is_remote(self.directory):
            require(
                re.fullmatch(r"gs://[^/]+(/.*)?", self.directory) is not None,
                f"{name} is in no object store that is known: give gs://bucket/…, or mount it and"
                " give its path.",
            )
            require(
                importlib.util.find_spec("gcsfs") is not None,
                f"{name} needs gcsfs: pip install gcsfs.",
            )
        else:
            require(
                os.path.isabs(self.directory),
                f"{name} must be an absolute path, or gs://bucket/…: processes may run in different"
                " directories.",
            )


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """`config.explorer`.

    Attributes:
      count: how many explorers; None for the least that the mode takes.
      groups_per_lease: groups that an explorer generates at once; None for its share of a batch.
      dtype: what parameters are cast to when they are published, and what explorers compute and
        cache in; None for `model.dtype`.
      processes: how many processes each explorer has, each with an equal part of the devices.
      mesh: each explorer's devices, those of all its processes.
    """

    count: int | None
    groups_per_lease: int | None
    dtype: str | None
    processes: int
    mesh: ExplorerMesh

    def __post_init__(self) -> None:
        require_parts("explorer", self.processes, self.mesh.shape)
        if self.dtype is not None:
            one_of("explorer.dtype", self.dtype, DTYPES)


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
        require_port("replay.port", self.port)
        if self.address is not None:
            require_address("replay.address", self.address)


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
            0 <= self.reward_workers <= _MOST_WORKERS,
            f"master.reward_workers must be from 0 to {_MOST_WORKERS} processes of this machine,"
            f" not {self.reward_workers}.",
        )
        require_port("master.port", self.port)
        require_patience("master", lease_secs=self.lease_secs)


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
