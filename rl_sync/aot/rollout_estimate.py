"""Memory of an explorer's programs, estimated from shapes: nothing is compiled.

See `rl_sync.aot.estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax

from rl_sync.aot.estimate import Estimate
from rl_sync.aot.programs import rollout_programs
from rl_sync.models import lora, memory
from rl_sync.models.config import ModelConfig
from rl_sync.models.lines import line_shape
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.platform import TPU_LANES, Platform, compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.runtime import wiring
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task

SAMPLING_ARRAYS: dict[Platform, float] = {"cpu": 6.4, "gpu": 4.0, "tpu": 4.0}
"""Number of float32 arrays of slots by vocabulary in a decode step."""

_CACHE, _PROMPTS = "KV cache", "keys and values of prompts"


def explorer_estimate(settings: RunSettings, task: Task, platform: Platform) -> Estimate:
    """Estimates an explorer's engine with all slots in use, and weights that arrive."""
    model, layout = wiring.explorer_model(settings, task), settings.explorer_layout
    adapters, base = lora.split(param_like(model, layout))
    weights = memory.device_bytes(like_cast(base, model.dtype))
    held = {"parameters": weights, "parameters that arrive": weights}
    if adapters:
        held |= {"base": memory.device_bytes(base), "adapters": memory.device_bytes(adapters)}
    work: dict[str, int] = {}
    cache = 0
    for one in rollout_programs(settings, task, layout):
        found = ESTIMATES[one.name](settings, task, platform, one.sizes)
        cache = max(cache, found.held.get(_CACHE, 0))
        work[one.name] = found.temporary + found.held.get(_PROMPTS, 0)
    made, offloaded = {_CACHE: cache}, {}
    if count := settings.environment.older_versions if settings.plays else 0:
        held["parameters of opponents"] = weights
        made["KV cache of opponents"] = cache
        # The policy's version is kept, too: it is older than the next.
        offloaded["older versions"] = (count + 1) * weights
    return Estimate(held, made, work, offloaded)


def decode_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> Estimate:
    """Estimates an explorer's decode steps.

    Args:
      sizes: the slots in use, and the positions that are read.
    """
    rows, _ = sizes
    model, layout = _model(settings, task), settings.explorer_layout
    held = {"parameters": _weights(model, layout), _CACHE: _slots(settings, task, platform, rows)}
    return Estimate(held, {}, {"sampling": _sampling_bytes(platform, layout, model, rows)}, {})


def prefill_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> Estimate:
    """Estimates an explorer's prefill of prompts, without its slots.

    Args:
      sizes: the number of prompts, and of the tokens of each.
    """
    rows, tokens = sizes
    model, layout = _model(settings, task), settings.explorer_layout
    made = {_PROMPTS: _cache_bytes(platform, model, layout, rows, tokens)}
    # Gate and up are the largest arrays of a forward pass.
    width = 2 * model.mlp_dim * jax.numpy.dtype(model.dtype).itemsize
    mlp = math.ceil(rows * tokens / layout.mesh.size) * width
    return Estimate({"parameters": _weights(model, layout)}, made, {"a block": mlp}, {})


def insert_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> Estimate:
    """Estimates the insertion of prefilled prompts into an explorer's slots.

    Args:
      sizes: the slots in use, the number of prompts, and of the tokens of each.
    """
    slots, rows, tokens = sizes
    model, layout = _model(settings, task), settings.explorer_layout
    prompts = _cache_bytes(platform, model, layout, rows, tokens)
    held = {_CACHE: _slots(settings, task, platform, slots), _PROMPTS: prompts}
    gathered = prompts * layout.batch_shards if layout.batch_shards > 1 else 0
    return Estimate(held, {}, {"gathered prompts": gathered}, {})


ESTIMATES: dict[str, Callable[[RunSettings, Task, Platform, Sequence[int]], Estimate]] = {
    "prefill": prefill_estimate,
    "insert": insert_estimate,
    "decode": decode_estimate,
}
"""The estimate of each of an explorer's programs."""


def _slots(settings: RunSettings, task: Task, platform: Platform, rows: int) -> int:
    model = _model(settings, task)
    return _cache_bytes(platform, model, settings.explorer_layout, rows, model.max_length)


def _cache_bytes(
    platform: Platform, model: ModelConfig, layout: Layout, rows: int, tokens: int
) -> int:
    with compiling_for(platform):
        size = memory.cache_bytes(model, rows, tokens, layout)
        width = line_shape(model, tokens)[1]
    # A TPU pads lines that hold one token of a head of another width.
    return size * (-(-width // TPU_LANES) * TPU_LANES) // width if platform == "tpu" else size


def _model(settings: RunSettings, task: Task) -> ModelConfig:
    return lora.merged_config(wiring.explorer_model(settings, task))


def _weights(model: ModelConfig, layout: Layout) -> int:
    return memory.device_bytes(like_cast(param_like(model, layout), model.dtype))


def _sampling_bytes(platform: Platform, layout: Layout, model: ModelConfig, slots: int) -> int:
    # On CPUs devices along `tensor` were not measured.
    shards = layout.batch_shards if platform == "cpu" else layout.mesh.size
    return round(SAMPLING_ARRAYS[platform] * 4 * math.ceil(slots / shards) * model.vocab_size)
