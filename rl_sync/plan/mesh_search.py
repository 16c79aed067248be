"""Searches for meshes and batch shapes that fit accelerators, by shapes and peak rates."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from rl_sync.models.mesh_shape import MeshShape
from rl_sync.plan.compile_text import format_secs
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.roofline import decode_work, step_work
from rl_sync.plan.targets import Target, target
from rl_sync.roles.assembly import wiring
from rl_sync.settings.mesh_settings import ExplorerMesh, TrainerMesh
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

_SHOWN = 5
_ROOM = 0.92
"""Fraction of a device's memory that a program may use; the runtime needs the rest."""


class Proposal(NamedTuple):
    """Settings that fit into memory.

    Attributes:
      settings: settings in the syntax of the command line.
      estimate: bytes on each device.
      secs: minimum time of a trainer step, or of a token of each slot.
    """

    settings: str
    estimate: MemoryEstimate
    secs: float


_WAYS_OUT = {
    "trainer": "more or larger chips, shorter rows, adapters (model.lora.rank), or offloading",
    "explorer": "more or larger chips, shorter rows, fewer rollout.slots, or explorer.quantization",
}


def describe_found(settings: RunSettings, task: Task, name: str) -> str:
    """Describes the settings that fit a target, fastest first.

    Raises:
      ConfigError: there is no such target.
    """
    where = target(name)
    lines = [f"Fits {where}, fastest first (from shapes and peak rates; nothing was compiled):"]
    kinds = {"trainer": trainers(settings, task, where)}
    if settings.explorers:
        kinds["explorer"] = explorers(settings, task, where)
    for role, found in kinds.items():
        best = sorted(found, key=lambda one: (one.secs, one.estimate.peak))[:_SHOWN]
        if not best:
            lines.append(f"  {role:<10} nothing fits: use {_WAYS_OUT[role]}")
        for one in best:
            per = "a step" if role == "trainer" else "a token of each slot"
            lines.append(
                f"  {role:<10} {one.settings}\n"
                f"             {format_bytes(one.estimate.peak)} a device, at least"
                f" {format_secs(one.secs)} {per}"
            )
    return "\n".join(lines)


def trainers(settings: RunSettings, task: Task, where: Target) -> Iterator[Proposal]:
    """Yields meshes, microbatches and remat policies of the trainer that fit."""
    updates = settings.optimizer.updates_per_batch
    rows = settings.trainer.groups_per_step * settings.trainer.group_size // updates
    for mesh, remat in itertools.product(
        _meshes(where), ("none", "dots_no_batch", "attention", "full")
    ):
        shards = mesh.data * mesh.fsdp
        for micro in (rows >> power for power in range(rows.bit_length())):
            if not micro or rows % micro or micro % shards:
                continue
            tried = dataclasses.replace(
                settings,
                trainer=dataclasses.replace(
                    settings.trainer,
                    microbatch_rows=micro,
                    mesh=_with(settings.trainer.mesh, mesh),
                ),
                model=dataclasses.replace(settings.model, remat=remat),
            )
            estimate = step_estimate(tried, task, where.chip.platform)
            if estimate.peak > _ROOM * where.chip.memory:
                continue
            yield Proposal(
                f"--config.trainer.mesh.data={mesh.data} --config.trainer.mesh.fsdp={mesh.fsdp}"
                f" --config.trainer.mesh.tensor={mesh.tensor}"
                f" --config.trainer.microbatch_rows={micro} --config.model.remat={remat}",
                estimate,
                step_work(tried, task).secs(where.rates(mesh.devices)),
            )


def explorers(settings: RunSettings, task: Task, where: Target) -> Iterator[Proposal]:
    """Yields meshes of an explorer that fit."""
    for mesh in _meshes(where):
        if mesh.fsdp > 1 or settings.slots % mesh.data:
            continue
        explorer = settings.explorer
        tried = dataclasses.replace(
            settings, explorer=dataclasses.replace(explorer, mesh=_with(explorer.mesh, mesh))
        )
        estimate = explorer_estimate(tried, task, where.chip.platform)
        if estimate.peak > _ROOM * where.chip.memory:
            continue
        span = wiring.explorer_model(tried, task).max_length
        yield Proposal(
            f"--config.explorer.mesh.data={mesh.data} --config.explorer.mesh.tensor={mesh.tensor}",
            estimate,
            decode_work(tried, task, tried.slots, span).secs(where.rates(mesh.devices)),
        )


def _with(mesh: TrainerMesh | ExplorerMesh, shape: MeshShape) -> Any:
    """Returns a mesh's settings with other sizes."""
    names = {field.name for field in dataclasses.fields(mesh)}
    sizes = {name: size for name, size in dataclasses.asdict(shape).items() if name in names}
    return dataclasses.replace(mesh, **sizes)


def _meshes(where: Target) -> Iterator[MeshShape]:
    """Yields all meshes of a target's devices; `data` goes across slices."""
    devices = where.count
    for data in range(where.slices, devices + 1, where.slices):
        if devices % data:
            continue
        for fsdp in range(1, devices // data + 1):
            if devices // data % fsdp == 0:
                yield MeshShape(data, fsdp, devices // data // fsdp)
