"""Memory of each role's device, estimated from shapes before anything is allocated."""

from __future__ import annotations

from launcher import resident
from launcher.resident import Resident
from rl_sync.learning.critic import Critic
from rl_sync.learning.opt_state import opt_state_like
from rl_sync.models import lora, memory
from rl_sync.models.placement import like_cast, param_like, undivided
from rl_sync.models.sharding import MeshShape
from rl_sync.runtime import wiring
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def describe_memory(settings: RunSettings, task: Task) -> str:
    """Describes the bytes of parameters, optimizer, activations and cache on each device."""
    explorers = [_explorer(settings, task)] if settings.explorers else []
    roles = (_trainer(settings, task), *explorers, *_undivided(settings, task))
    return "\n".join(["Memory per device, from shapes:", *roles])


def _trainer(settings: RunSettings, task: Task) -> str:
    model, layout = wiring.trainer_model(settings, task), settings.trainer_layout
    params = param_like(model, layout)
    trained = lora.split(params)[0] if model.lora else params
    updates = settings.optimizer.updates_per_batch
    optimizer = settings.optimizer.reinforcement(settings.trainer.steps * updates)
    largest = wiring.batching(settings, task.row_tokens).largest()
    batch_rows, row_tokens = largest.rows.tokens.shape
    rows = (settings.trainer.microbatch_rows or batch_rows // updates) // layout.batch_shards
    valued = settings.algorithm.needs_values
    by_policy = memory.activation_bytes_by_policy(
        model,
        rows,
        row_tokens,
        settings.trainer.logits_bytes,
        own_critic=valued and settings.critic.model == "own",
    )
    others = (
        f"{policy} {format_bytes(size)}"
        for policy, size in by_policy.items()
        if policy != model.remat
    )
    parts = {
        "parameters": memory.device_bytes(params),
        "optimizer": memory.device_bytes(opt_state_like(optimizer, trained, layout)),
        "gradients": memory.device_bytes(trained),
    }
    offloaded = {}
    if settings.algorithm.needs_reference:
        parts["reference"] = memory.device_bytes(trained)
    if valued:
        all_updates = settings.trainer.steps * updates
        critic = Critic(settings.critic, model, settings.optimizer, all_updates, layout)
        state = critic.like(trained)
        parts["critic"] = memory.device_bytes([state.params, state.params])  # With its gradients.
        parts["critic optimizer"] = memory.device_bytes(state.opt_state)
    if settings.trainer.offload_reference and "reference" in parts:
        offloaded["reference"] = parts.pop("reference")
    if settings.trainer.offload_optimizer:
        names = [name for name in parts if name.endswith("optimizer")]
        offloaded |= {name: parts.pop(name) for name in names}
    activations = by_policy[model.remat]
    kept = sum(parts.values()) + sum(offloaded.values()) - parts["gradients"]
    process = resident.trainer(
        settings, task, (rows, row_tokens), state=kept, step=parts["gradients"] + activations
    )
    most = "at most " if settings.trainer.mesh.tensor > 1 else ""  # Only some are sharded.
    return (
        f"  trainer    {_mesh(settings.trainer.mesh.shape)}{_list(parts)}, activations"
        f" {most}{format_bytes(activations)} for {rows} rows of {row_tokens} tokens:"
        f" {format_bytes(sum(parts.values()) + activations)}\n"
        f"             (activations with model.remat={model.remat}; {', '.join(others)})"
        + (f"\n             in the host's memory: {_list(offloaded)}" if offloaded else "")
        + _on_cpus(process, kept, "a step or a snapshot")
    )


def _explorer(settings: RunSettings, task: Task) -> str:
    model, layout = wiring.explorer_model(settings, task), settings.explorer_layout
    slots = settings.slots
    adapters, base = lora.split(param_like(model, layout))
    size = memory.device_bytes(like_cast(base, model.dtype))
    parts = {"parameters": size, "parameters that arrive": size}
    if adapters:
        parts |= {"base": memory.device_bytes(base), "adapters": memory.device_bytes(adapters)}
    parts["KV cache"] = memory.cache_bytes(model, slots, model.max_length, layout)
    most = settings.environment.aside_bytes if settings.plays else 0
    aside = {"caches set aside": most} if most else {}
    return (
        f"  explorer   {_mesh(settings.explorer.mesh.shape)}{_list(parts)} for"
        f" {slots // layout.batch_shards} slots of {model.max_length} tokens:"
        f" {format_bytes(sum(parts.values()))}"
        + (f"\n             in the host's memory, at most: {_list(aside)}" if aside else "")
        + _on_cpus(resident.explorer(settings, task), sum(parts.values()), "a step or a transfer")
    )


def _on_cpus(process: Resident, held: int, moment: str) -> str:
    """Describes the memory of a process whose devices are CPUs.

    Args:
      held: the bytes of arrays that are always there.
      moment: the name of the moment in which working memory is needed.
    """
    parts = [f"{format_bytes(process.program)} for programs"]
    if process.weights:
        parts.append(f"{format_bytes(process.weights)} for published versions")
    parts.append(f"{format_bytes(process.work)} during {moment}")
    return (
        f"\n             (a process on CPUs: {', '.join(parts)}; with the above about"
        f" {format_bytes(held + sum(process))} resident)"
    )


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


def _mesh(shape: MeshShape) -> str:
    return f"[{shape}] " if shape.devices > 1 else ""


def _list(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def format_bytes(size: float) -> str:
    """Formats bytes with three digits and a unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
