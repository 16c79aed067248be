"""Memory of each role, estimated from shapes before anything is allocated, for each platform."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.aot.estimate import Estimate, rows_at_once, step_estimate
from rl_sync.aot.rollout_estimate import explorer_estimate
from rl_sync.launcher import resident
from rl_sync.launcher.resident import Resident
from rl_sync.models.config import Remat
from rl_sync.models.placement import undivided
from rl_sync.models.platform import Platform
from rl_sync.models.sharding import MeshShape
from rl_sync.runtime import wiring
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_PLATFORMS: tuple[Platform, ...] = ("tpu", "gpu", "cpu")
_INDENT = "\n" + " " * 13


def describe_memory(settings: RunSettings, task: Task) -> str:
    """Describes the bytes that each role holds, and its most bytes on each platform."""
    explorers = [describe_explorer(settings, task)] if settings.explorers else []
    roles = (describe_trainer(settings, task), *explorers, *_undivided(settings, task))
    return "\n".join(["Memory per device, from shapes:", *roles])


def describe_trainer(settings: RunSettings, task: Task) -> str:
    """Describes the trainer's state, and a step on each platform."""
    rows, row_tokens = rows_at_once(settings, task)
    remat = settings.model.remat
    others = [policy for policy in get_args(Remat) if policy != remat]
    step = step_estimate(settings, task, "cpu")
    apart = [f"in the host's memory: {_list(step.offloaded)}"] if step.offloaded else []
    lines = [
        _held("trainer", settings.trainer.mesh.shape, step),
        *apart,
        f"and for a step, {rows} rows of {row_tokens} tokens at once, model.remat={remat}"
        f" ({', '.join(others)}):",
    ]
    for platform in _PLATFORMS:
        by_policy = [
            step_estimate(_with_remat(settings, policy), task, platform)
            for policy in (remat, *others)
        ]
        if platform != "cpu":
            peaks = [one.peak for one in by_policy]
            lines.append(_on_device(platform, by_policy[0]))
        else:
            processes = [resident.trainer(settings, task, one) for one in by_policy]
            pairs = zip(processes, by_policy, strict=True)
            peaks = [process.with_arrays(one) for process, one in pairs]
            lines.append(_on_cpus(step, processes[0]))
        lines[-1] += f" ({', '.join(map(format_bytes, peaks[1:]))})"
    return _INDENT.join(_merged(lines))


def _merged(lines: list[str]) -> list[str]:
    """Writes what is the same on TPUs and GPUs once."""
    on_tpus, on_gpus = lines[-3:-1]
    tpus, gpus = "on TPUs: ", "on GPUs: "
    if on_tpus.removeprefix(tpus) != on_gpus.removeprefix(gpus):
        return lines
    both = on_tpus.replace(tpus, "on TPUs and GPUs: ")
    return [*lines[:-3], both, lines[-1]]


def _with_remat(settings: RunSettings, policy: str) -> RunSettings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, remat=policy))


def describe_explorer(settings: RunSettings, task: Task) -> str:
    """Describes an explorer's weights, and its engine on each platform."""
    of = {platform: explorer_estimate(settings, task, platform) for platform in _PLATFORMS}
    slots = settings.slots // settings.explorer_layout.batch_shards
    on_host = dict(of["cpu"].offloaded)
    if settings.plays and settings.environment.aside_bytes:
        on_host["caches set aside"] = settings.environment.aside_bytes
    lines = [
        _held("explorer", settings.explorer.mesh.shape, of["cpu"]),
        *([f"in the host's memory, at most: {_list(on_host)}"] if on_host else []),
        f"and for {slots} slots of {wiring.explorer_model(settings, task).max_length} tokens:",
        *(_on_device(platform, of[platform]) for platform in _PLATFORMS if platform != "cpu"),
        _on_cpus(of["cpu"], resident.explorer(settings, task, of["cpu"])),
    ]
    return _INDENT.join(_merged(lines))


def _held(role: str, mesh: MeshShape, estimate: Estimate) -> str:
    shape = f"[{mesh}] " if mesh.devices > 1 else ""
    total = format_bytes(sum(estimate.held.values()))
    return f"  {role:<10} {shape}{_list(estimate.held)}: {total}"


def _on_device(platform: Platform, estimate: Estimate) -> str:
    """Describes the memory of an accelerator, but for what its role always holds."""
    parts = {**estimate.made, "temporary arrays": max(estimate.work.values(), default=0)}
    return f"on {platform.upper()}s: {_list(parts)}: {format_bytes(estimate.peak)} a device"


def _on_cpus(estimate: Estimate, process: Resident) -> str:
    """Describes the memory of a process whose devices are CPUs, but for what it always holds."""
    weights = {"published versions": process.weights} if process.weights else {}
    parts = {
        **estimate.made,
        "temporary arrays": process.work,
        **weights,
        "programs": process.program,
    }
    return f"on CPUs: {_list(parts)}: about {format_bytes(process.with_arrays(estimate))} resident"


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


def _list(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def format_bytes(size: float) -> str:
    """Formats bytes with three digits and a unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
