"""Estimates the memory of an explorer's programs; see `rl_sync.plan.memory.memory_estimate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.kernels.decode import reads_what_is_filled
from rl_sync.models.lines import line_shape
from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.platform import TPU_LANES, Platform, compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.models.vision.tower import TOWER, VISION
from rl_sync.plan.lowered_programs import rollout_programs
from rl_sync.plan.memory import model_memory
from rl_sync.plan.memory.memory_estimate import MemoryEstimate, in_process
from rl_sync.plan.memory.trainer_memory import tower_work
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import Parameters, parameters_of
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.transfers.ends import ends_of

EXPLORER_PROGRAM_BYTES = 480_000_000
"""Bytes of an explorer's process on CPUs: libraries, compiled programs, and half of the memory of
their compilation, which a compilation cache saves. (Freed memory is kept:
`rl_sync.cluster.malloc`.)
"""

SAMPLING_ARRAYS: dict[Platform, float] = {"cpu": 6.4, "gpu": 4.0, "tpu": 4.0}
"""Number of float32 arrays of shape [slots, vocabulary] in a decode step."""

CACHE = "KV cache"
"""Name of the cache of rollouts in an estimate."""

_PROMPTS = "keys and values of prompts"


def explorer_estimate(settings: RunSettings, task: Task, platform: Platform) -> MemoryEstimate:
    """Estimates an explorer's engine with all slots in use, while weights arrive.

    A served engine has a memory of its own, which is not counted.
    """
    policy = _policy(settings, task)
    weights = model_memory.device_bytes(policy.abstract_held)
    held = {"parameters": weights}
    if not settings.merges_in_place:
        held["parameters that arrive"] = weights
    work: dict[str, int] = {}
    adapters, base = lora.split(policy.abstract)
    if adapters:
        # On the trainer's only device, its base is read; on meshes it may lie otherwise.
        alone = settings.trainer.mesh.shape.devices == settings.explorer.mesh.shape.devices == 1
        if not (alone and settings.hands_over and settings.launch.share_devices):
            held["base"] = model_memory.device_bytes(policy.abstract_base)
        held["adapters"] = model_memory.device_bytes(adapters)
        # Layers are merged in float32, one after another.
        work["merging"] = model_memory.device_bytes(base["blocks"]) // policy.model.num_layers
    count = settings.environment.older_versions if settings.plays else 0
    is_served = bool(settings.explorer.engines)
    generates = not is_served or count or settings.explorers_evaluate_every
    cache = 0
    for one in rollout_programs(settings, task, settings.explorer_layout) if generates else ():
        found = ESTIMATES[one.name](settings, task, platform, one.sizes)
        cache = max(cache, found.held.get(CACHE, 0))
        work[one.name] = sum(found.made.values()) + found.temporary + found.held.get(_PROMPTS, 0)
    made: dict[str, int] = {} if is_served else {CACHE: cache}
    offloaded = {}
    if count:
        held["parameters of opponents"] = weights
        made["KV cache of opponents"] = cache
        # The policy's present version is kept too, since it will be older than the next one.
        offloaded["older versions"] = (count + 1) * weights
    if settings.explorers_evaluate_every:
        held["parameters of an evaluation"] = weights
        made["KV cache of an evaluation"] = _examination_cache_bytes(settings, task, platform)
        if waiting := settings.evaluation.waiting:
            offloaded["parameters of evaluations that wait"] = waiting * weights
    if platform != "cpu":
        return MemoryEstimate(held, made, work, offloaded)
    if not settings.launch.colocate:
        version = model_memory.device_bytes(policy.abstract_published())
        ends = ends_of(settings.transfer)
        work["weights that arrive"] = ends.arriving_bytes(version, settings.deltas)
    devices = settings.explorer.mesh.shape.devices // settings.explorer.processes
    estimate = MemoryEstimate(held, made, work, offloaded)
    return in_process(estimate, devices, {"programs": EXPLORER_PROGRAM_BYTES})


def _policy(settings: RunSettings, task: Task) -> Parameters:
    """Returns the abstract parameters of an explorer's policy."""
    return parameters_of(settings, task, settings.explorer_layout)


def _read_bytes(settings: RunSettings, task: Task) -> int:
    """Returns the bytes of the parameters that prefills and decode steps read, not the tower's."""
    held = dict(_policy(settings, task).abstract_held)
    if VISION in held:
        held[VISION] = {name: of for name, of in held[VISION].items() if name != TOWER}
    return model_memory.device_bytes(held)


def decode_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> MemoryEstimate:
    """Estimates an explorer's decode steps.

    Args:
      sizes: number of slots in use, and of positions that are read.
    """
    rows, span = sizes
    model, layout = _engine_model(settings, task), settings.explorer_layout
    weights = _read_bytes(settings, task)
    cache = _engine_cache_bytes(settings, task, platform, rows)
    # Sharding over `tensor` was not measured on CPUs.
    shards = layout.batch_shards if platform == "cpu" else layout.mesh.size
    sampled = math.ceil(rows / shards) * settings.rollout.step_tokens
    logits = 4 * sampled * model.vocab_size
    work = {"sampling": round(SAMPLING_ARRAYS[platform] * logits)}
    drafts = settings.rollout.speculation != "off"
    with compiling_for(platform):
        by_kernel = reads_what_is_filled(model, layout, drafts=drafts)
    if settings.rollout.cache_bytes and platform == "gpu" and not by_kernel:
        whole = _cache_bytes(platform, model, layout, rows, span)
        work["gathered pages"] = whole // model.num_layers
    return MemoryEstimate({"parameters": weights, CACHE: cache}, {}, work)


def prefill_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> MemoryEstimate:
    """Estimates an explorer's prefill of prompts, without its slots.

    Args:
      sizes: number of prompts, of tokens of each, and of tiles of its images, if it has any.
    """
    rows, tokens, *tiles = sizes
    model, layout = _engine_model(settings, task), settings.explorer_layout
    held = {"parameters": _read_bytes(settings, task)}
    made = {_PROMPTS: _cache_bytes(platform, model, layout, rows, tokens)}
    # Gate and up are the largest arrays of a forward pass.
    width = 2 * model.mlp_dim * jax.numpy.dtype(model.dtype).itemsize
    mlp = math.ceil(rows * tokens / layout.mesh.size) * width
    if tiles:
        made["features of images"] = _features_bytes(model, rows * tiles[0])
    return MemoryEstimate(held, made, {"a block": mlp})


def image_features_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> MemoryEstimate:
    """Estimates an explorer's encoding of images.

    Args:
      sizes: number of tiles.
    """
    (tiles,) = sizes
    model, layout = _engine_model(settings, task), settings.explorer_layout
    assert model.vision is not None
    tower = _policy(settings, task).abstract_held[VISION][TOWER]
    held = {"vision tower": model_memory.device_bytes(tower)}
    made = {"features of images": _features_bytes(model, tiles)}
    made["pixels"] = tiles * model.vision.pixel_bytes
    own = math.ceil(tiles / layout.batch_shards)
    return MemoryEstimate(held, made, {"a block": tower_work(model, layout, own)})


def _features_bytes(model: ModelConfig, tiles: int) -> int:
    """Returns the bytes of the features of tiles."""
    assert model.vision is not None
    return tiles * model.vision.tile_bytes(jax.numpy.dtype(model.dtype).itemsize)


def insert_estimate(
    settings: RunSettings, task: Task, platform: Platform, sizes: Sequence[int]
) -> MemoryEstimate:
    """Estimates the insertion of prefilled prompts into an explorer's slots.

    Args:
      sizes: number of slots in use, of prompts, and of tokens of each.
    """
    slots, rows, tokens = sizes
    model, layout = _engine_model(settings, task), settings.explorer_layout
    prompts = _cache_bytes(platform, model, layout, rows, tokens)
    cache = _engine_cache_bytes(settings, task, platform, slots)
    whole = rows * _cache_bytes(platform, model, layout, 1, tokens)
    gathered = whole if whole > prompts else 0
    return MemoryEstimate({CACHE: cache, _PROMPTS: prompts}, {}, {"gathered prompts": gathered})


ESTIMATES: dict[str, Callable[[RunSettings, Task, Platform, Sequence[int]], MemoryEstimate]] = {
    "image_features": image_features_estimate,
    "prefill": prefill_estimate,
    "insert": insert_estimate,
    "decode": decode_estimate,
}
"""Estimators of an explorer's programs."""


def _engine_cache_bytes(settings: RunSettings, task: Task, platform: Platform, rows: int) -> int:
    """Returns the bytes of an explorer's cache on each device, with `rows` slots in use."""
    model, layout = _engine_model(settings, task), settings.explorer_layout
    with compiling_for(platform):
        if (pages := wiring.cache_pages(settings, task)) is not None:
            return pages.pages * page_bytes(model, layout)
    return _cache_bytes(platform, model, layout, rows, model.max_length)


def _examination_cache_bytes(settings: RunSettings, task: Task, platform: Platform) -> int:
    """Returns the bytes of the cache of an explorer's evaluations on each device."""
    model, layout = _engine_model(settings, task), settings.explorer_layout
    with compiling_for(platform):
        if (size := wiring.examination_cache_bytes(settings, task)) is not None:
            return size
    return _cache_bytes(platform, model, layout, settings.evaluation_slots, model.max_length)


def _cache_bytes(
    platform: Platform, model: ModelConfig, layout: Layout, rows: int, tokens: int
) -> int:
    with compiling_for(platform), using(layout.grouped(model.num_kv_heads)):
        size = model_memory.cache_bytes(model, rows, tokens, layout)
        width = line_shape(model, tokens)[1]
    # A TPU pads lines whose width is not a multiple of its lanes.
    return size * (-(-width // TPU_LANES) * TPU_LANES) // width if platform == "tpu" else size


def _engine_model(settings: RunSettings, task: Task) -> ModelConfig:
    return lora.merged_config(wiring.explorer_model(settings, task))
