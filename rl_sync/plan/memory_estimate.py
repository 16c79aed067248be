"""Estimates the memory of a run's programs on accelerators and on CPUs from shapes.

Nothing is compiled or allocated. The parts of a program are those seen in compiled programs, and
the factors of working memory were fitted to them (`benchmarks/compiled.py`). If a role's devices
are CPUs, its process has the arrays of all of them, and also needs libraries, compiled programs,
and versions of the weights in transfer. The constants of these were measured
(`benchmarks/memory.py`) in runs of models of 8 to 135 million parameters. Most estimates were
within a fifth of the measurements. The largest gap: a trainer of 34 million parameters took 2.5 GB
in its steps and 3.0 to 3.3 GB at its end, with an estimate of 1.9 GB.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rl_sync.algorithms.algorithm import EXACT, TOPK
from rl_sync.learning.critic import Critic
from rl_sync.learning.opt_state import abstract_opt_state
from rl_sync.learning.optimizer import rl_optimizer
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.kernels.decode import reads_what_is_filled
from rl_sync.models.lines import line_shape
from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.placement import abstract_params, as_computed_abstract, cast_abstract
from rl_sync.models.platform import TPU_LANES, Platform, compiling_for
from rl_sync.models.sharding import Layout, cuts_positions, using
from rl_sync.models.transformer import param_axes
from rl_sync.models.vision.tower import TOWER, VISION, scores_bytes
from rl_sync.models.vocabulary.token_sets import LogprobSettings
from rl_sync.models.vocabulary.vocabulary_blocks import plan_of
from rl_sync.plan import model_memory
from rl_sync.plan.lowered_programs import rollout_programs
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import Parameters, parameters_of
from rl_sync.roles.teaching.teacher_models import teacher_models
from rl_sync.sampling_masks import word_count
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.transfers.ends import ends_of
from rl_sync.types import Params
from rl_sync.weights.deltas.history_publisher import compares_on

EXPLORER_PROGRAM_BYTES = 480_000_000
"""Bytes of an explorer's process on CPUs: libraries, compiled programs, and half of the memory of
their compilation, which a compilation cache saves. (Freed memory is kept:
`rl_sync.cluster.malloc`.)
"""

TRAINER_PROGRAM_BYTES = 750_000_000

SAMPLING_ARRAYS: dict[Platform, float] = {"cpu": 6.4, "gpu": 4.0, "tpu": 4.0}
"""Number of float32 arrays of shape [slots, vocabulary] in a decode step."""

_COPIED_GRADIENTS = 1.5  # On CPUs XLA copies the gradients of all layers of deep models.
_SNAPSHOT_SHARE = 1.5  # Memory for saving on CPUs, in state sizes: copies for host and files.
_CACHE, _PROMPTS = "KV cache", "keys and values of prompts"

_LOGITS_ARRAYS = 3
"""Number of arrays of a chunk's logits in a backward pass that recomputes them."""

_TEACHER_LOGITS_ARRAYS = 3
"""Number of arrays of such a chunk that a comparison with a teacher's logits adds."""

_DISTRIBUTIONS: dict[Platform, int] = {"cpu": 4, "gpu": 6, "tpu": 6}
"""Number of arrays with the log-probabilities of the vocabulary at each token of the batch, where
the trainer scores tokens for exact centering."""


_LAYERS_AHEAD = 2
"""Number of layers whose kernels are gathered in addition to those in use."""

_NEVER_WHOLE = 1
"""Maximum bytes of logits for several devices, which compute them by blocks and keep none."""


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a program on each device; on CPUs, bytes of a role's process.

    Attributes:
      held: arrays that exist before and after it, by name.
      made: arrays that it makes and that live as long as it runs, by name.
      work: temporary arrays of each phase, by name; phases do not overlap.
      offloaded: arrays in host memory, by name.
      process: memory of a process other than arrays, by name; empty unless its devices are CPUs.
    """

    held: dict[str, int]
    made: dict[str, int]
    work: dict[str, int]
    offloaded: dict[str, int] = dataclasses.field(default_factory=dict)
    process: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def temporary(self) -> int:
        """Returns the bytes of the largest phase."""
        return max(self.work.values(), default=0)

    @property
    def peak(self) -> int:
        """Returns the maximum bytes at any time."""
        parts = [self.held, self.made]
        if self.process:  # Offloaded arrays are in the same memory.
            parts += [self.offloaded, self.process]
        return sum(sum(part.values()) for part in parts) + self.temporary


def step_estimate(settings: RunSettings, task: Task, platform: Platform) -> MemoryEstimate:
    """Estimates the trainer's step on its largest batch."""
    model, layout = wiring.trainer_model(settings, task), settings.trainer_layout
    held, offloaded = _state(settings, task, model, layout)
    rows, row_tokens = rows_at_once(settings, task)
    own_tokens = _own_positions(layout, row_tokens)
    made = {"gradients": model_memory.device_bytes(_trained(model, layout))}
    if settings.algorithm.needs_values:
        made["critic gradients"] = held["critic"]
    gradients = sum(made.values())
    batch = wiring.batching_of(settings, task).largest()
    made["batch"] = model_memory.tree_bytes(batch) // layout.batch_shards
    shard = _shard_of(model, layout)
    made["activations"] = _activations(platform, settings, shard, (rows, own_tokens))
    if batch.rows.sampling_masks is not None:
        made["sampling masks"] = 4 * rows * row_tokens * word_count(model.vocab_size)
    if settings.algorithm.score_centering == EXACT and batch.rows.sampler_logprobs is None:
        one = 4 * batch.rows.tokens.size * model.vocab_size // layout.batch_shards
        made["distributions of tokens"] = _DISTRIBUTIONS[platform] * one
    work = {"the logits": _loss_bytes(platform, settings, model, (rows, row_tokens))}
    if tiles := _tiles_at_once(settings, task):
        if settings.model.trains_tower:
            made["activations"] += model_memory.tower_bytes(_tower_shard(model, layout), tiles)
        work["the vision tower"] = _tower_work(model, layout, tiles)
    if platform != "cpu":
        # Gradients of a microbatch are added to the sum over earlier ones.
        fresh = gradients if settings.trainer.microbatch_rows else 0
        block = _block_bytes(platform, shard, rows, own_tokens)
        work["a block"] = fresh + block + _LAYERS_AHEAD * _layer_weights(model, layout)
        if settings.deltas and compares_on(platform):
            made["the last published version"] = model_memory.device_bytes(
                parameters_of(settings, task, layout).abstract_published()
            )
        return MemoryEstimate(held, made, work, offloaded)
    work["a block"] = round(_COPIED_GRADIENTS * gradients)
    devices = settings.trainer.mesh.shape.devices // settings.trainer.processes
    published = 0
    if settings.explorers:
        version = model_memory.tree_bytes(
            parameters_of(settings, task, layout).abstract_published()
        )
        ends = ends_of(settings.transfer, settings.hands_over)
        published = ends.published_bytes(
            version // settings.trainer.processes, settings.schedule, settings.deltas
        )
        if settings.explorers_evaluate_every and (
            settings.hands_over or settings.transfer == "server"
        ):
            published += version // settings.trainer.processes  # The version to evaluate stays.
    # While a snapshot is saved, no version is in transfer, and no step runs.
    state = sum(held.values()) + sum(offloaded.values())
    saved = round(_SNAPSHOT_SHARE * state) - published // devices
    work["a snapshot"] = saved - sum(made.values())
    more = {"published versions": published, "programs": TRAINER_PROGRAM_BYTES}
    return _process(MemoryEstimate(held, made, work, offloaded), devices, more)


def _process(estimate: MemoryEstimate, devices: int, more: dict[str, int]) -> MemoryEstimate:
    """Returns the estimate of a process on CPUs, which has the arrays of all its devices.

    Args:
      estimate: estimate of one device.
      more: other memory of the process.
    """
    parts = (estimate.held, estimate.made, estimate.offloaded)
    arrays = sum(sum(part.values()) for part in parts) + estimate.temporary
    process = more | {"its other devices": (devices - 1) * arrays}
    return dataclasses.replace(
        estimate, process={name: size for name, size in process.items() if size}
    )


def _activations(
    platform: Platform, settings: RunSettings, shard: ModelConfig, sizes: tuple[int, int]
) -> int:
    """Returns the bytes that a forward pass keeps for the backward pass.

    Args:
      sizes: number of rows of a device, and of their tokens.
    """
    rows, length = sizes
    layout = settings.trainer_layout
    own_critic = settings.algorithm.needs_values and settings.critic.model == "own"
    if layout.mesh.size == 1:
        logits_bytes = settings.trainer.logits_bytes
        return _kept_bytes(platform, shard, sizes, logits_bytes, own_critic)
    one, two = (
        _kept_bytes(platform, shard, (times * rows, length), _NEVER_WHOLE, own_critic)
        for times in (1, 2)
    )
    # Bytes that do not grow with the rows are kernels that were cast before they were gathered.
    parts = layout.mesh.shape
    return two - one + (2 * one - two) // (parts["fsdp"] * parts["context"])


def _own_positions(layout: Layout, row_tokens: int) -> int:
    """Returns the number of positions of a row that a device has."""
    (cut,) = layout.cuts(("length",), (row_tokens,))
    return row_tokens // math.prod(layout.mesh.shape[name] for name in cut)


def _shard_of(model: ModelConfig, layout: Layout) -> ModelConfig:
    """Returns a model whose activations are as large as those of one device along `tensor`."""
    parts = layout.tensor_shards
    heads, kv_heads = (max(1, count // parts) for count in (model.num_heads, model.num_kv_heads))
    if model.num_heads % parts or heads % kv_heads or model.mlp_dim % parts:
        return model  # Some of its parts are replicated.
    return dataclasses.replace(
        model, num_heads=heads, num_kv_heads=kv_heads, mlp_dim=model.mlp_dim // parts
    )


def rows_at_once(settings: RunSettings, task: Task) -> tuple[int, int]:
    """Returns how many rows a trainer device computes at once, and the tokens of a row."""
    batch_rows, row_tokens = wiring.batching_of(settings, task).largest().rows.tokens.shape
    micro = settings.trainer.microbatch_rows or batch_rows // settings.optimizer.updates_per_batch
    return max(1, micro // settings.trainer_layout.batch_shards), row_tokens


def _tiles_at_once(settings: RunSettings, task: Task) -> int:
    """Returns how many tiles of images a trainer device encodes at once; 0 without images.

    Features of images are encoded already.
    """
    rows = wiring.batching_of(settings, task).largest().rows
    if rows.images is None or rows.images.tiles.ndim == 3:
        return 0
    layout = settings.trainer_layout
    parts = len(rows.tokens) // (rows_at_once(settings, task)[0] * layout.batch_shards)
    return math.ceil(len(rows.images.tiles) / max(1, parts) / layout.batch_shards)


def _tower_shard(model: ModelConfig, layout: Layout) -> ModelConfig:
    """Returns a model whose tower's activations are as large as those of one device."""
    vision, parts = model.vision, layout.tensor_shards
    assert vision is not None
    if vision.num_heads % parts or vision.mlp_dim % parts:
        return model
    return dataclasses.replace(
        model, vision=dataclasses.replace(vision, mlp_dim=vision.mlp_dim // parts)
    )


def _tower_work(model: ModelConfig, layout: Layout, tiles: int) -> int:
    """Returns the bytes of a block of the vision tower while it encodes tiles.

    Args:
      tiles: number of tiles of a device.
    """
    vision = _tower_shard(model, layout).vision
    assert vision is not None
    heads = -(-vision.num_heads // layout.tensor_shards)
    width = jax.numpy.dtype(model.dtype).itemsize
    patches = tiles * vision.patches**2
    of_stream = patches * vision.embed_dim * width
    of_attention = 4 * of_stream * heads // vision.num_heads
    scores = scores_bytes(tiles, heads, vision.patches**2) * (4 + width) // 4
    hidden = patches * vision.mlp_dim * width
    return 2 * of_stream + max(of_attention + scores, hidden)


def _state(
    settings: RunSettings, task: Task, model: ModelConfig, layout: Layout
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the bytes of a state on each device, and of its offloaded parts."""
    trained = _trained(model, layout)
    updates = settings.optimizer.updates(settings.trainer.steps)
    optimizer = rl_optimizer(settings.optimizer, updates)
    held = {
        "parameters": model_memory.device_bytes(_held(model, layout)),
        "optimizer": model_memory.device_bytes(abstract_opt_state(optimizer, trained, layout)),
    }
    if settings.algorithm.needs_reference:
        held["reference"] = model_memory.device_bytes(as_computed_abstract(model, trained))
    for teacher in teacher_models(settings, task):
        whole = as_computed_abstract(teacher, abstract_params(teacher, layout))
        held["teacher"] = held.get("teacher", 0) + model_memory.device_bytes(whole)
    if (kept := wiring.kept_versions(settings)) is not None:
        version = model_memory.device_bytes(as_computed_abstract(model, trained))
        held["earlier versions"] = kept.count * version
    if settings.algorithm.needs_values:
        critic = Critic(settings.critic, model, settings.optimizer, updates, layout).abstract(
            trained
        )
        held["critic"] = model_memory.device_bytes(critic.params)
        held["critic optimizer"] = model_memory.device_bytes(critic.opt_state)
    trainer, apart = settings.trainer, {}
    for name in list(held):
        if trainer.offload_optimizer if "optimizer" in name else (
            (trainer.offload_reference and name == "reference")
            or (settings.teacher.offload and name == "teacher")
        ):  # fmt: skip
            apart[name] = held.pop(name)
    return held, apart


def _held(model: ModelConfig, layout: Layout) -> Params:
    """Returns the parameters as a state holds them; see `Trainer.held`."""
    params = abstract_params(model, layout)
    if not model.lora:
        return params
    trained, frozen = lora.split(params)
    return lora.join(trained, as_computed_abstract(model, frozen))


def _trained(model: ModelConfig, layout: Layout) -> Params:
    params = abstract_params(model, layout)
    return lora.split(params)[0] if model.lora else params


def _kept_bytes(
    platform: Platform,
    model: ModelConfig,
    sizes: tuple[int, int],
    logits_bytes: int,
    own_critic: bool = False,
) -> int:
    """Returns `model_memory.activation_bytes` on a platform."""
    # Attention kernels keep the same values on both. Tracing a GPU's kernel needs its library.
    traced: Platform = "cpu" if platform == "cpu" else "tpu"
    # The kernel for experts on GPUs has a derivative of its own.
    keeps_inputs = platform == "gpu" and model.experts is not None
    return _traced_bytes(traced, model, sizes, logits_bytes, own_critic, keeps_inputs)


@functools.cache
def _traced_bytes(platform: Platform, *of: Any) -> int:
    with compiling_for(platform):
        return model_memory.activation_bytes(*of)


def _block_bytes(platform: Platform, model: ModelConfig, rows: int, length: int) -> int:
    """Returns the bytes that the backward pass of one block keeps while it runs.

    They include the block's kernels, if these are cast.
    """

    def kept(layers: int) -> int:
        few = dataclasses.replace(
            model,
            num_layers=layers,
            remat="none",
            sliding_layers=model.sliding_layers[:layers],
        )
        return _kept_bytes(platform, few, (rows, length), _NEVER_WHOLE)

    return kept(2) - kept(1)


def _layer_weights(model: ModelConfig, layout: Layout) -> int:
    """Returns the bytes of one layer's gathered kernels, in the dtype of the computation."""
    one: Params = cast_abstract(abstract_params(model, layout), model.dtype)["blocks"]
    axes, split = jax.tree.leaves(param_axes(model)["blocks"]), layout.tensor_shards
    experts = layout.mesh.shape["experts"]
    total = sum(
        model_memory.tree_bytes(leaf) // (experts if "experts" in names else 1)
        for names, leaf in zip(axes, jax.tree.leaves(one), strict=True)
    )
    return total // model.num_layers // split


def _loss_bytes(
    platform: Platform,
    settings: RunSettings,
    model: ModelConfig,
    sizes: tuple[int, int],
) -> int:
    """Returns the bytes of the output projection, its gradient, and simultaneous logits.

    Args:
      sizes: number of rows of a device, and of tokens of a row.
    """
    (rows, length), layout = sizes, settings.trainer_layout
    width = jax.numpy.dtype(model.dtype).itemsize
    matrix, most = (model.vocab_size, model.embed_dim), settings.trainer.logits_bytes
    position = 4 * rows * model.vocab_size
    compares = settings.algorithm.distillation in (EXACT, TOPK) and not settings.teacher.address
    arrays = _LOGITS_ARRAYS + _TEACHER_LOGITS_ARRAYS * compares
    whole = (length - 1) * position
    if layout.mesh.size > 1 or (platform != "cpu" and whole > most):
        with using(layout):
            # Where positions are cut, all of the row count: one fewer could not be cut evenly.
            positions = length if cuts_positions() else length - 1
            targets = rows * layout.batch_shards, positions
            plan = plan_of(matrix, targets, LogprobSettings(logits_bytes=most))
        cuts = plan.cuts
        tokens = rows * positions // cuts.size(cuts.positions)
        shard = plan.number * plan.size * model.embed_dim // cuts.size(cuts.embed)
        block = plan.size * cuts.size(cuts.shared)
        logits, kernel = 4 * tokens * block, block * model.embed_dim
        # One block and the next are gathered.
        work = 2 * width * kernel + arrays * logits
        if model.lora:
            return work
        # First the gradient's blocks, then the gradient.
        return work + 4 * kernel + (width + 2 * 4) * shard
    if platform == "cpu" and whole <= most:
        return 0  # The logits are kept, and counted as activations.
    chunk = min(whole, max(position, most // position * position))
    if model.lora:
        return arrays * chunk
    # The matrix's gradient is summed over the chunks, in addition to the current chunk's.
    copy = 0 if platform == "cpu" else width
    return math.prod(matrix) * (copy + 4) + arrays * chunk


def explorer_estimate(settings: RunSettings, task: Task, platform: Platform) -> MemoryEstimate:
    """Estimates an explorer's engine with all slots in use, while weights arrive.

    A served engine has a memory of its own, which is not counted.
    """
    policy = _policy(settings, task)
    weights = model_memory.device_bytes(policy.abstract_held)
    held = {"parameters": weights, "parameters that arrive": weights}
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
        cache = max(cache, found.held.get(_CACHE, 0))
        work[one.name] = sum(found.made.values()) + found.temporary + found.held.get(_PROMPTS, 0)
    made: dict[str, int] = {} if is_served else {_CACHE: cache}
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
    return _process(estimate, devices, {"programs": EXPLORER_PROGRAM_BYTES})


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
    if settings.rollout.cache_bytes is not None and platform == "gpu" and not by_kernel:
        whole = _cache_bytes(platform, model, layout, rows, span)
        work["gathered pages"] = whole // model.num_layers
    return MemoryEstimate({"parameters": weights, _CACHE: cache}, {}, work)


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
    return MemoryEstimate(held, made, {"a block": _tower_work(model, layout, own)})


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
    return MemoryEstimate({_CACHE: cache, _PROMPTS: prompts}, {}, {"gathered prompts": gathered})


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
