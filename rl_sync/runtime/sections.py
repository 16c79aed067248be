"""The config's sections of a few fields each, as frozen records that validate themselves."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re

from rl_sync.models.config import DTYPES
from rl_sync.models.sharding import MESH_AXES, MeshShape, Rules
from rl_sync.runtime.limits import require_address, require_patience, require_port, require_shell
from rl_sync.runtime.records import one_of, require
from rl_sync.weights.locations import is_remote

BACKENDS = ("reverb", "embedded")
_MOST_WORKERS = 1024


def process_name(program: str, process: int) -> str:
    """How a process of a program is called: the program, and which one unless it is the first."""
    return f"{program}/{process}" if process else program


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
class TrainerMesh:
    """`config.trainer.mesh`: on how many devices what is repeated or shared out; see `sharding`.

    Attributes:
      data: rows are; parameters are repeated.
      fsdp: rows, parameters and the optimizer's state are.
      tensor: heads, the MLP's width and the vocabulary are.
    """

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self) -> None:
        _require_sizes("trainer.mesh", data=self.data, fsdp=self.fsdp, tensor=self.tensor)

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(self.data, self.fsdp, self.tensor)


@dataclasses.dataclass(frozen=True)
class ExplorerMesh:
    """`config.explorer.mesh`: on how many devices what is repeated or shared out; see `sharding`.

    Attributes:
      data: slots and their caches are; parameters are repeated.
      tensor: heads, their caches, the MLP's width and the vocabulary are.
    """

    data: int
    tensor: int

    def __post_init__(self) -> None:
        _require_sizes("explorer.mesh", data=self.data, tensor=self.tensor)

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(data=self.data, tensor=self.tensor)


def _require_sizes(section: str, **sizes: int) -> None:
    for name, size in sizes.items():
        require(size >= 1, f"{section}.{name} must be at least 1 device, not {size}.")


def _require_parts(section: str, processes: int, mesh: MeshShape) -> None:
    require(processes >= 1, f"{section}.processes must be at least 1, not {processes}.")
    require(
        mesh.devices % processes == 0,
        f"{section}.processes={processes} cannot share {section}.mesh of {mesh}, which is"
        f" {mesh.devices} devices, evenly: the mesh is over the devices of all processes, so use"
        " sizes whose product is a multiple of their number.",
    )


@dataclasses.dataclass(frozen=True)
class ShardingSettings:
    """`config.sharding`: along which mesh axes each logical axis is cut, separated by commas.

    Where several axes of one array claim a mesh axis, the one that comes first here has it; what
    does not divide evenly is not cut.

    Attributes:
      batch: rows of a batch, slots of an engine.
      length: positions of a row.
      vocab: of the embedding and the output projection.
      kv: key and value heads, with the query heads that share them, and their caches.
      head_dim: width of a head.
      mlp: width of the MLP.
      experts: of a mixture.
      embed: width of the residual stream, in parameters.
      layers: of the stack.
    """

    batch: str
    length: str
    vocab: str
    kv: str
    head_dim: str
    mlp: str
    experts: str
    embed: str
    layers: str

    def __post_init__(self) -> None:
        for name, axes in self.rules:
            for axis in axes:
                one_of(f"sharding.{name}", axis, MESH_AXES)
            require(
                len(set(axes)) == len(axes),
                f"sharding.{name}={getattr(self, name)} names an axis twice: name each once.",
            )

    @property
    def rules(self) -> Rules:
        """In the order of precedence."""
        return tuple(
            (name, tuple(axis.strip() for axis in axes.split(",") if axis.strip()))
            for name, axes in vars(self).items()
        )


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
        _require_parts("trainer", self.processes, self.mesh.shape)
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
        _require_parts("explorer", self.processes, self.mesh.shape)
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


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """`config.launch`: processes, patience in seconds, and where compiled programs are kept.

    Attributes:
      colocate: whether trainer and explorers are threads of one process. Each has devices of its
        own if there are enough; weights that would go by collective transfer are handed over.
      share_devices: with `colocate`, whether they take turns on the same devices in any case.
      explorer_restarts: how often each explorer that died is started again. With collective
        transfer, and in one process with the trainer, its death ends the run.
      start_secs: until a role or a server is up.
      wait_secs: the longest that a role waits for another, and that one gives no sign of life.
      call_secs: the longest that the master takes to answer.
      master_lost_secs: a role ends itself when the master was silent for so long.
      stop_secs: a role that was asked to stop is killed when it has neither computed nor saved
        for so long.
      resume_changed: whether a run goes on although settings have changed that say what it learns,
        and from what. Without it only those may change that say where, how fast and how long.
      host: this machine, as those of `hosts` reach it; None for one that nobody else reaches.
      hosts: the machines of processes that run elsewhere, as NAME=ADDRESS,… with names such as
        `explorer2`, or `trainer/1` for the trainer's second process.
      remote_shell: what starts a command elsewhere and keeps its standard input open; {host} is
        the address.
      compilation_cache: a local directory; None for one in the user's cache directory, empty for
        nowhere. JAX_COMPILATION_CACHE_DIR goes before it.
    """

    colocate: bool
    share_devices: bool
    explorer_restarts: int
    start_secs: float
    wait_secs: float
    call_secs: float
    master_lost_secs: float
    stop_secs: float
    resume_changed: bool
    host: str | None
    hosts: str
    remote_shell: str
    compilation_cache: str | None

    @property
    def elsewhere(self) -> dict[str, str]:
        """The machines of processes that do not run on this one, by the processes' names."""
        pairs = (pair.partition("=") for pair in self.hosts.split(",") if pair.strip())
        return {name.strip(): address.strip() for name, _, address in pairs}

    def __post_init__(self) -> None:
        for name, address in self.elsewhere.items():
            require(
                bool(name and address),
                f"launch.hosts={self.hosts} must be NAME=ADDRESS,… such as explorer2=10.0.0.2.",
            )
        names = [name.partition("=")[0].strip() for name in self.hosts.split(",") if name.strip()]
        for name in names:
            require(
                names.count(name) == 1,
                f"launch.hosts={self.hosts} says twice where {name} is: say it once.",
            )
        require(
            not self.elsewhere or bool(self.host),
            f"launch.hosts={self.hosts} needs launch.host, this machine's address as those reach"
            " it.",
        )
        require_shell("launch.remote_shell", self.remote_shell)
        require_patience(
            "launch",
            start_secs=self.start_secs,
            wait_secs=self.wait_secs,
            call_secs=self.call_secs,
            master_lost_secs=self.master_lost_secs,
            stop_secs=self.stop_secs,
        )
        require(
            "://" not in (self.compilation_cache or ""),
            f"launch.compilation_cache={self.compilation_cache} is not a local directory. Give JAX"
            " a remote one by the variable JAX_COMPILATION_CACHE_DIR.",
        )
        restarts = self.explorer_restarts
        require(
            restarts >= 0, f"launch.explorer_restarts must be at least 0 (never), not {restarts}."
        )
