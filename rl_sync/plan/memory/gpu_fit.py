"""Warns before a run of GPUs that are too small for it, or have no units for its dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_sync.cluster.gpu_cards import GpuCard
from rl_sync.cluster.gpus import reserved_share
from rl_sync.models.mixture.products import has_kernel
from rl_sync.plan.memory.device_sharing import shared_peak, with_cache
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_advice import describe_advice
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.role_names import EXPLORER, TRAINER
from rl_sync.roles.assembly import wiring
from rl_sync.settings.records import require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

_HOPPER = (9, 0)
"""Compute capability from which on a kernel computes the products of experts."""


def slow_dtypes(settings: RunSettings, half: str) -> str:
    """Names the settings of 16-bit dtypes that matrix units do not compute in; empty if none.

    Args:
      half: dtype of 16 bits in which they compute.
    """
    dtypes = {
        "trainer.compute_dtype": settings.compute_dtype,
        "explorer.dtype": settings.explorer_dtype,
    }
    slow = [f"{name}={dtype}" for name, dtype in dtypes.items() if dtype not in (half, "float32")]
    return " and ".join(slow) if half != "bfloat16" else ""


def dtype_warning(settings: RunSettings, cards: Sequence[GpuCard]) -> str:
    """Returns a line about a dtype that a GPU has no units for; empty if there is none."""
    for card in cards:
        if slow := slow_dtypes(settings, card.half):
            return (
                f"WARNING: this machine's GPU ({card.name}) has no units for {slow}, which XLA"
                f" computes in float32, several times slower: use model.dtype={card.half}."
            )
    return ""


def experts_warning(settings: RunSettings, task: Task, cards: Sequence[GpuCard]) -> str:
    """Returns a line about experts whose products no kernel computes; empty if there are none."""
    experts = wiring.trainer_model(settings, task).experts
    if not experts or not cards:
        return ""
    old = next((card for card in cards if card.capability < _HOPPER), None)
    dtypes = {settings.compute_dtype, settings.explorer_dtype}
    if old is not None:
        why = f"its kernel does not run on this machine's GPU ({old.name}), which is before Hopper"
    elif "float32" in dtypes:
        why = "its kernel computes in 16 bits: use model.dtype=bfloat16"
    elif not has_kernel():
        why = "the package of its kernel is missing: pip install 'rl_sync[gpu]'"
    else:
        return ""
    times = experts.count / experts.per_token
    return (
        f"WARNING: XLA multiplies each token of the mixture with all {experts.count} experts,"
        f" {times:.3g} times the work of its {experts.per_token}, as {why}."
    )


def room_of(cards: Sequence[GpuCard], environment: Mapping[str, str]) -> int:
    """Returns the bytes that a run may use of the smallest GPU.

    Args:
      cards: the GPUs of all roles.
      environment: environment variables, which may say what JAX reserves.
    """
    return round(reserved_share(environment, len(cards)) * min(card.memory for card in cards))


def fill_gpus(
    settings: RunSettings, task: Task, cards: Sequence[GpuCard], environment: Mapping[str, str]
) -> RunSettings:
    """Returns the settings with a size for `rollout.cache_bytes=0`: what the run leaves.

    Args:
      cards, environment: see `memory_warnings`.

    Raises:
      ConfigError: the explorers' GPUs are not known here.
    """
    if settings.rollout.cache_bytes != 0:
        return settings
    rule = "rollout.cache_bytes=0 takes what the run leaves of this machine's GPUs"
    way_out = "give a number of bytes, or leave it out for a row of each slot"
    require(not settings.launch.elsewhere, f"{rule}, but launch.hosts names others: {way_out}.")
    require(bool(cards), f"{rule}, and nvidia-smi lists none that JAX may use here: {way_out}.")
    free = min(card.memory - card.used for card in cards)
    room = min(room_of(cards, environment), free)
    return with_cache(settings, task, "gpu", room, shared=len(cards) == 1)


def memory_warnings(
    settings: RunSettings, task: Task, cards: Sequence[GpuCard], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields lines about GPUs whose memory is less than the run's estimate, with ways out.

    On a single GPU all roles have to fit together, and otherwise the largest alone. The estimate is
    made of shapes, so a run that it warns of may fit.

    Args:
      cards: the GPUs of all roles.
      environment: environment variables, which may say what JAX reserves.
    """
    if not cards:
        return
    card = min(cards, key=lambda card: card.memory - card.used)
    trainer = step_estimate(settings, task, "gpu")
    peaks, needed = {TRAINER: trainer.peak}, trainer.peak
    if settings.explorers:
        explorer = explorer_estimate(settings, task, "gpu")
        peaks[EXPLORER] = explorer.peak
        needed = max(peaks.values())
        if len(cards) == 1:
            needed = shared_peak(settings, trainer, explorer)
    room = room_of(cards, environment)
    free = card.memory - card.used
    if needed <= min(room, free):
        return
    size, has = format_bytes(needed), f"{card.name} with {format_bytes(card.memory)}"
    if needed <= room:
        yield (
            f"WARNING: by estimates from shapes, this run needs {size} of a GPU ({has}), where"
            f" other programs hold {format_bytes(card.used)} (nvidia-smi): end them, or choose"
            " another GPU with CUDA_VISIBLE_DEVICES."
        )
        return
    roles = [role for role in peaks if len(cards) == 1 or peaks[role] > room]
    yield (
        f"WARNING: by estimates from shapes, this run needs {size} of a GPU ({has}), of which it"
        f" reserves {format_bytes(room)}. It may end for want of memory."
    )
    yield describe_advice(settings, task, roles, "gpu")
