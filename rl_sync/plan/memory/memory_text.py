"""Describes each role's memory on each platform, estimated from shapes before a run."""

from __future__ import annotations

import dataclasses
from typing import get_args

import jax.numpy as jnp

from rl_sync.models.config import Remat
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import undivided
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.trainer_memory import rows_at_once, step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.weights import link
from rl_sync.weights.routes import SHARES

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_PLATFORMS: tuple[Platform, ...] = ("tpu", "gpu", "cpu")
_INDENT = "\n" + " " * 13


def describe_memory(settings: RunSettings, task: Task) -> str:
    """Describes the arrays and the maximum memory of each role, and of the transfer."""
    explorers = [describe_explorer(settings, task)] if settings.explorers else []
    roles = (describe_trainer(settings, task), *explorers, *_undivided(settings, task))
    moved = [*describe_transfer(settings, task), *describe_images(settings, task)]
    return "\n".join(["Memory per device, from shapes:", *roles, *moved])


def describe_trainer(settings: RunSettings, task: Task) -> str:
    """Describes the trainer's state, and a step on each platform."""
    rows, row_tokens = rows_at_once(settings, task)
    remat = settings.model.remat
    others = [policy for policy in get_args(Remat) if policy != remat]
    steps = {
        platform: [
            step_estimate(_with_remat(settings, policy), task, platform)
            for policy in (remat, *others)
        ]
        for platform in _PLATFORMS
    }
    step = steps["cpu"][0]
    return _INDENT.join(
        [
            _held("trainer", settings.trainer.mesh.shape, step),
            *([f"in the host's memory: {_list(step.offloaded)}"] if step.offloaded else []),
            f"and for a step, {rows} rows of {row_tokens} tokens at once, model.remat={remat}"
            f" ({', '.join(others)}):",
            *_on_platforms(
                {
                    platform: f"{_besides(one)} ({', '.join(format_bytes(x.peak) for x in more)})"
                    for platform, (one, *more) in steps.items()
                }
            ),
        ]
    )


def _with_remat(settings: RunSettings, policy: str) -> RunSettings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, remat=policy))


def describe_explorer(settings: RunSettings, task: Task) -> str:
    """Describes an explorer's weights, and its engine on each platform."""
    engines = {platform: explorer_estimate(settings, task, platform) for platform in _PLATFORMS}
    engine = engines["cpu"]
    slots = settings.slots // settings.explorer_layout.batch_shards
    on_host = dict(engine.offloaded)
    if settings.plays and settings.environment.kv_offload_bytes:
        on_host["caches set aside"] = settings.environment.kv_offload_bytes
    length = wiring.explorer_model(settings, task).max_length
    return _INDENT.join(
        [
            _held("explorer", settings.explorer.mesh.shape, engine),
            *([f"in the host's memory, at most: {_list(on_host)}"] if on_host else []),
            f"and beside {settings.explorer.engine}, which generates in a memory of its own:"
            if settings.explorer.engines
            else f"and for {slots} slots of {length} tokens{_pages(settings, task)}:",
            *_on_platforms({platform: _besides(one) for platform, one in engines.items()}),
        ]
    )


def _pages(settings: RunSettings, task: Task) -> str:
    """Describes the pages of an explorer's cache, if it has pages."""
    with compiling_for("cpu"):
        pages = wiring.cache_pages(settings, task)
    return "" if pages is None else f" in pages of {pages.page_tokens} tokens"


def _held(role: str, mesh: MeshShape, estimate: MemoryEstimate) -> str:
    shape = f"[{mesh}] " if mesh.devices > 1 else ""
    total = format_bytes(sum(estimate.held.values()))
    return f"  {role:<10} {shape}{_list(estimate.held)}: {total}"


def _besides(estimate: MemoryEstimate) -> str:
    """Describes a program's memory beyond the role's permanent arrays, and its maximum."""
    parts = {**estimate.made, "temporary arrays": estimate.temporary, **estimate.process}
    peak = format_bytes(estimate.peak)
    most = f"about {peak} resident" if estimate.process else f"{peak} a device"
    return f"{_list({name: size for name, size in parts.items() if size}) or 'nothing'}: {most}"


def _on_platforms(texts: dict[Platform, str]) -> list[str]:
    """Labels texts with their platforms; a text that is equal on several is written once."""
    names: dict[str, list[str]] = {}
    for platform, text in texts.items():
        names.setdefault(text, []).append(f"{platform.upper()}s")
    return [f"on {' and '.join(of)}: {text}" for text, of in names.items()]


def _undivided(settings: RunSettings, task: Task) -> list[str]:
    """Describes the axes that the meshes cannot shard evenly."""
    model = wiring.model_config(settings, task)
    lines = []
    for role, layout in (
        ("trainer", settings.trainer_layout),
        ("explorer", settings.explorer_layout),
    ):
        for line in undivided(model, layout):
            lines.append(
                f"  {role:<10} cannot shard {line} evenly: that axis is whole on each device"
            )
    return lines


def describe_transfer(settings: RunSettings, task: Task) -> list[str]:
    """Describes the collective transfer to an explorer; nothing for other transfers."""
    joint = settings.transfer == "collective" and not settings.launch.colocate
    if not settings.explorers or not joint:
        return []
    there, here = (
        parameters_of(settings, task, layout).abstract_published()
        for layout in (settings.trainer_layout, settings.explorer_layout)
    )
    plan = link.plan(there, here)
    programs, turns = plan.programs, plan.exchanges
    return [
        f"  transfer   {programs} program{'s' * (programs != 1)} move{'s' * (programs == 1)} the"
        f" weights to an explorer, in {turns} turn{'s' * (turns != 1)}; besides the weights a"
        f" device holds at most {format_bytes(SHARES * plan.nbytes)}"
    ]


def describe_images(settings: RunSettings, task: Task) -> list[str]:
    """Describes what groups carry of their images; nothing for a policy that reads text alone."""
    model = wiring.explorer_model(settings, task)
    if model.vision is None or not settings.explorers:
        return []
    pixels = model.vision.pixel_bytes
    features = model.vision.tile_bytes(jnp.dtype(model.dtype).itemsize)
    what, why = "pixels", "which the trainer's vision tower encodes"
    size, other = pixels, f"features {format_bytes(features)}"
    if wiring.sends_features(settings, task):
        what, why = "features", "which the explorer's frozen vision tower has computed"
        size, other = features, f"pixels {format_bytes(pixels)}"
    elif not settings.model.trains_tower:
        why = "which are smaller than features"
    most = task.trained_tiles
    return [
        f"  images     travel once with a group, as {what}, {why}:"
        f"{_INDENT}{format_bytes(size)} a tile ({other}), at most {most} tile{'s' * (most != 1)}"
        " a prompt"
    ]


def _list(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def format_bytes(size: float) -> str:
    """Formats bytes with three digits and a unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
