"""Proposes settings with which a role needs less memory of its devices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from rl_sync.models.platform import Platform
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import rows_at_once, step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

_MOST = 3
_WORTHWHILE = 0.95
"""Share of the present maximum above which a change is not proposed."""


class MemorySaving(NamedTuple):
    """A setting that saves memory.

    Attributes:
      name: name of the setting.
      value: its new value.
      peak: the role's maximum with it, in bytes of a device.
    """

    name: str
    value: object
    peak: int


def describe_advice(
    settings: RunSettings, task: Task, roles: Iterable[str], platform: Platform
) -> str:
    """Describes for each role the three changes that save most; empty if none is known.

    Args:
      roles: `trainer`, `explorer` or both.
      platform: the platform of the devices.
    """
    lines: list[str] = []
    for role in roles:
        before, changes = advice(settings, task, role, platform)
        lines += [
            f"  --config.{name}={_written(value)}: {format_bytes(peak)} in place of"
            f" {format_bytes(before)} of the {role}"
            for name, value, peak in changes
        ]
    told = "By estimates from shapes, a device needs less memory with one of these:"
    return "\n".join([told, *lines] if lines else [])


def advice(
    settings: RunSettings, task: Task, role: str, platform: Platform
) -> tuple[int, list[MemorySaving]]:
    """Returns a role's maximum in bytes of a device, and the changes that save most of it."""
    estimate, proposals = _ROLES[role]
    before = estimate(settings, task, platform).peak
    found = []
    for name, value in proposals(settings, task):
        try:
            changed = read_settings(_with(settings.resolved(), name, value))
            peak = estimate(changed, wiring.load_task(changed), platform).peak
        except (ConfigError, ValueError):
            continue  # It does not fit the other settings.
        if peak < _WORTHWHILE * before:
            found.append(MemorySaving(name, value, peak))
    return before, sorted(found, key=lambda change: change.peak)[:_MOST]


def _of_trainer(settings: RunSettings, task: Task) -> Iterator[tuple[str, object]]:
    rows, _ = rows_at_once(settings, task)
    if rows > 1:
        fewer = max(count for count in range(1, rows // 2 + 1) if rows % count == 0)
        yield "trainer.microbatch_rows", fewer * settings.trainer_layout.batch_shards
    if settings.model.remat != "full":
        yield "model.remat", "full"
    if not settings.model.lora.rank:
        yield "model.lora.rank", 16
        yield "trainer.offload_optimizer", True
    if settings.algorithm.needs_reference:
        yield "trainer.offload_reference", True
    if settings.compute_dtype == "float32":
        yield "trainer.compute_dtype", "bfloat16"


def _of_explorer(settings: RunSettings, task: Task) -> Iterator[tuple[str, object]]:
    del task
    if settings.slots > 1:
        yield "rollout.slots", settings.slots // 2
    if settings.quantization is None:
        yield "explorer.quantization", "int8"
    if settings.explorer_dtype == "float32":
        yield "explorer.dtype", "bfloat16"
    if settings.rollout.cache_bytes:
        yield "rollout.cache_bytes", settings.rollout.cache_bytes // 2


_Estimate = Callable[[RunSettings, Task, Platform], MemoryEstimate]
_Proposals = Callable[[RunSettings, Task], Iterator[tuple[str, object]]]
_ROLES: dict[str, tuple[_Estimate, _Proposals]] = {
    "trainer": (step_estimate, _of_trainer),
    "explorer": (explorer_estimate, _of_explorer),
}


def _with(config: ConfigValues, name: str, value: object) -> ConfigValues:
    """Returns a copy of a config with another value of a setting."""
    changed: Any = copy.deepcopy(config)
    *sections, field = name.split(".")
    section = changed
    for part in sections:
        section = section[part]
    section[field] = value
    return changed


def _written(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
