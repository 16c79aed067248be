"""Estimates the memory of a trainer's step; see `rl_sync.plan.memory.memory_estimate`."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax

from rl_sync.algorithms.algorithm import EXACT, TOPK
from rl_sync.learning.critic import Critic
from rl_sync.learning.opt_state import abstract_opt_state
from rl_sync.learning.optimizer import rl_optimizer
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import abstract_params, as_computed_abstract, cast_abstract
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout, cuts_positions, using
from rl_sync.models.transformer import param_axes
from rl_sync.models.vision.tower import scores_bytes
from rl_sync.models.vocabulary.token_sets import LogprobSettings
from rl_sync.models.vocabulary.vocabulary_blocks import plan_of
from rl_sync.plan.memory import model_memory
from rl_sync.plan.memory.memory_estimate import MemoryEstimate, in_process
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.roles.teaching.teacher_models import teacher_models
from rl_sync.sampling_masks import word_count
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.transfers.ends import ends_of
from rl_sync.types import Params
from rl_sync.weights.deltas.history_publisher import compares_on

EVALUATION = "an evaluation"
"""Name of the trainer's evaluation among the phases of an estimate."""

TRAINER_PROGRAM_BYTES = 750_000_000
"""Bytes of a trainer's process on CPUs; see `EXPLORER_PROGRAM_BYTES`."""

_COPIED_GRADIENTS = 1.5  # On CPUs XLA copies the gradients of all layers of deep models.
_SNAPSHOT_SHARE = 1.5  # Memory for saving on CPUs, in state sizes: copies for host and files.

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
        work["the vision tower"] = tower_work(model, layout, tiles)
    if platform != "cpu":
        # Gradients of a microbatch are added to the sum over earlier ones.
        fresh = gradients if settings.trainer.microbatch_rows else 0
        block = _block_bytes(platform, shard, rows, own_tokens)
        work["a block"] = fresh + block + _LAYERS_AHEAD * _layer_weights(model, layout)
        if settings.deltas and compares_on(platform):
            made["the last published version"] = model_memory.device_bytes(
                parameters_of(settings, task, layout).abstract_published()
            )
        if cache := _evaluation_cache(settings, task, platform, model):
            # No step runs meanwhile, so nothing of what it makes is there.
            work[EVALUATION] = cache - sum(made.values())
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
    return in_process(MemoryEstimate(held, made, work, offloaded), devices, more)


def _evaluation_cache(
    settings: RunSettings, task: Task, platform: Platform, model: ModelConfig
) -> int:
    """Returns the bytes of the cache with which the trainer completes held-out problems."""
    if not settings.evaluation.every_steps or settings.explorers_evaluate_every:
        return 0
    if settings.algorithm.scores:
        return 0  # Pairs are scored, and nothing is generated.
    slots = min(len(wiring.examination(settings, task).prompts), settings.sft.probe_problems)
    merged = lora.merged_config(model)
    with compiling_for(platform):
        return model_memory.cache_bytes(merged, slots, model.max_length, settings.trainer_layout)


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


def tower_work(model: ModelConfig, layout: Layout, tiles: int) -> int:
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
