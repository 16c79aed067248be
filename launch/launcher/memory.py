"""What each role's device has to hold, from shapes, before anything is allocated."""

from __future__ import annotations

import jax

from rl_sync.models import lora, memory
from rl_sync.models.config import ModelConfig
from rl_sync.runtime.settings import RunSettings
from rl_sync.tasks.task import Task

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def describe_memory(settings: RunSettings, task: Task) -> str:
    """The bytes of parameters, optimizer, activations and cache, a role and a device."""
    model = settings.model_config(task)
    roles = (_trainer(settings, model, task), _explorer(settings, model))
    return "\n".join(["Memory a device, from shapes:", *roles])


def _trainer(settings: RunSettings, model: ModelConfig, task: Task) -> str:
    params = memory.param_shapes(model)
    trained = lora.split(params)[0] if model.lora else params
    updates = settings.optimizer.updates_per_batch
    optimizer = settings.optimizer.reinforcement(settings.trainer.steps * updates)
    update_rows = settings.trainer.groups_per_step * settings.trainer.group_size // updates
    rows = settings.trainer.microbatch_rows or update_rows
    by_policy = memory.activation_bytes_by_policy(
        model, rows, task.row_tokens, settings.trainer.logits_bytes
    )
    others = (
        f"{policy} {format_bytes(size)}"
        for policy, size in by_policy.items()
        if policy != model.remat
    )
    parts = {
        "parameters": memory.tree_bytes(params),
        "optimizer": memory.tree_bytes(jax.eval_shape(optimizer.init, trained)),
        "gradients": memory.tree_bytes(trained),
    }
    if settings.algorithm.kl_coefficient > 0:
        parts["reference"] = memory.tree_bytes(trained)
    activations = by_policy[model.remat]
    return (
        f"  trainer    {_list(parts)}, activations {format_bytes(activations)} for {rows} rows of"
        f" {task.row_tokens} tokens: {format_bytes(sum(parts.values()) + activations)}\n"
        f"             (activations with model.remat={model.remat}; {', '.join(others)})"
    )


def _explorer(settings: RunSettings, model: ModelConfig) -> str:
    adapters, base = lora.split(memory.param_shapes(model))
    slots, size = settings.slots, memory.tree_bytes(base)
    parts = {"parameters": size, "parameters that arrive": size}
    if adapters:
        parts |= {"base": size, "adapters": memory.tree_bytes(adapters)}
    parts["KV cache"] = memory.cache_bytes(model, slots, model.max_length)
    return (
        f"  explorer   {_list(parts)} for {slots} slots of {model.max_length} tokens:"
        f" {format_bytes(sum(parts.values()))}"
    )


def _list(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def format_bytes(size: float) -> str:
    """Three digits and a unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
