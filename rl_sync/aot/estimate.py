"""Memory of a program on an accelerator, estimated from shapes: nothing is compiled.

The parts are those that the compiled programs were seen to have (`benchmarks/compiled.py`); the
factors of working memory were fitted to them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax

from rl_sync.learning.critic import Critic
from rl_sync.learning.opt_state import opt_state_like
from rl_sync.models import lora, memory
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.models.vocabulary_blocks import plan_of
from rl_sync.runtime import wiring
from rl_sync.sampling_masks import word_count
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params

_LOGITS_ARRAYS = 3
"""Number of chunks of logits in a backward pass that recomputes them."""


_LAYERS_AHEAD = 2
"""Number of layers whose kernels are gathered beside those that are computed with."""

_NEVER_WHOLE = 1
"""Bound of the logits on several devices, which compute them by blocks and keep none."""


class Estimate(NamedTuple):
    """Bytes of a program on each device.

    Attributes:
      held: arrays that are there before and after it, by name.
      made: arrays that it makes and that last as long as it does, by name.
      work: temporary arrays of each phase, by name; phases are not at the same time.
      offloaded: arrays in the memory of the device's host, by name.
    """

    held: dict[str, int]
    made: dict[str, int]
    work: dict[str, int]
    offloaded: dict[str, int]

    @property
    def peak(self) -> int:
        """Returns the most bytes at any time."""
        return sum(self.held.values()) + self.temporary

    @property
    def temporary(self) -> int:
        """Returns the most bytes at any time of arrays that it makes."""
        return sum(self.made.values()) + max(self.work.values(), default=0)


def step_estimate(settings: RunSettings, task: Task, platform: Platform) -> Estimate:
    """Estimates the trainer's step on its largest batch."""
    model, layout = wiring.trainer_model(settings, task), settings.trainer_layout
    held, offloaded = _state(settings, model, layout)
    rows, row_tokens = rows_at_once(settings, task)
    made = {"gradients": memory.device_bytes(_trained(model, layout))}
    if settings.algorithm.needs_values:
        made["critic gradients"] = held["critic"]
    # Those of a microbatch are added to those of the earlier ones.
    fresh = sum(made.values()) if settings.trainer.microbatch_rows else 0
    batch = wiring.batching_of(settings, task).largest()
    made["batch"] = memory.tree_bytes(batch) // layout.batch_shards
    shard = _shard_of(model, layout)
    made["activations"] = _activations(platform, settings, shard, rows, row_tokens)
    if batch.rows.sampling_masks is not None:
        made["sampling masks"] = 4 * rows * row_tokens * word_count(model.vocab_size)
    work = {"the logits": _loss_bytes(platform, settings, model, layout, rows, row_tokens)}
    if platform != "cpu":  # There XLA was seen to need no more than what is kept.
        block = _block_bytes(platform, shard, rows, row_tokens)
        work["a block"] = fresh + block + _LAYERS_AHEAD * _layer_weights(model, layout)
    return Estimate(held, made, work, offloaded)


def _activations(
    platform: Platform, settings: RunSettings, shard: ModelConfig, rows: int, length: int
) -> int:
    """Returns the bytes that a forward pass keeps for the backward pass."""
    layout = settings.trainer_layout
    own_critic = settings.algorithm.needs_values and settings.critic.model == "own"
    if layout.mesh.size == 1:
        logits_bytes = settings.trainer.logits_bytes
        return _kept_bytes(platform, shard, rows, length, logits_bytes, own_critic)
    one, two = (
        _kept_bytes(platform, shard, times * rows, length, _NEVER_WHOLE, own_critic)
        for times in (1, 2)
    )
    # What does not grow with the rows are kernels that were cast, before they were gathered.
    return two - one + (2 * one - two) // layout.mesh.shape["fsdp"]


def _shard_of(model: ModelConfig, layout: Layout) -> ModelConfig:
    """Returns the model whose activations are those of one device along `tensor`."""
    parts = layout.tensor_shards
    heads, kv_heads = (max(1, count // parts) for count in (model.num_heads, model.num_kv_heads))
    if model.num_heads % parts or heads % kv_heads or model.mlp_dim % parts:
        return model  # Some of it is replicated.
    return dataclasses.replace(
        model, num_heads=heads, num_kv_heads=kv_heads, mlp_dim=model.mlp_dim // parts
    )


def rows_at_once(settings: RunSettings, task: Task) -> tuple[int, int]:
    """Returns the rows whose activations each device of the trainer has at once, and their
    tokens.
    """
    batch_rows, row_tokens = wiring.batching_of(settings, task).largest().rows.tokens.shape
    micro = settings.trainer.microbatch_rows or batch_rows // settings.optimizer.updates_per_batch
    return max(1, micro // settings.trainer_layout.batch_shards), row_tokens


def _state(
    settings: RunSettings, model: ModelConfig, layout: Layout
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the bytes of a state on each device, and of the parts of it that are offloaded."""
    trained = _trained(model, layout)
    updates = settings.optimizer.updates(settings.trainer.steps)
    optimizer = settings.optimizer.reinforcement(updates)
    held = {
        "parameters": memory.device_bytes(param_like(model, layout)),
        "optimizer": memory.device_bytes(opt_state_like(optimizer, trained, layout)),
    }
    if settings.algorithm.needs_reference:
        held["reference"] = memory.device_bytes(trained)
    if settings.algorithm.needs_values:
        critic = Critic(settings.critic, model, settings.optimizer, updates, layout).like(trained)
        held["critic"] = memory.device_bytes(critic.params)
        held["critic optimizer"] = memory.device_bytes(critic.opt_state)
    trainer, apart = settings.trainer, {}
    for name in list(held):
        if trainer.offload_optimizer if "optimizer" in name else (
            trainer.offload_reference and name == "reference"
        ):  # fmt: skip
            apart[name] = held.pop(name)
    return held, apart


def _trained(model: ModelConfig, layout: Layout) -> Params:
    params = param_like(model, layout)
    return lora.split(params)[0] if model.lora else params


def _kept_bytes(platform: Platform, *of: Any) -> int:
    """Returns `memory.activation_bytes` on a platform."""
    # Kernels of attention keep the same on both; a GPU's asks for its library when it is traced.
    return _traced_bytes("cpu" if platform == "cpu" else "tpu", *of)


@functools.cache
def _traced_bytes(platform: Platform, *of: Any) -> int:
    with compiling_for(platform):
        return memory.activation_bytes(*of)


def _block_bytes(platform: Platform, model: ModelConfig, rows: int, length: int) -> int:
    """Returns the bytes that the backward pass of one block keeps while it works.

    Among them are its kernels, where they are cast.
    """

    def kept(layers: int) -> int:
        few = dataclasses.replace(
            model,
            num_layers=layers,
            remat="none",
            sliding_layers=model.sliding_layers[:layers],
        )
        return _kept_bytes(platform, few, rows, length, _NEVER_WHOLE)

    return kept(2) - kept(1)


def _layer_weights(model: ModelConfig, layout: Layout) -> int:
    """Returns the bytes of one layer's kernels, gathered, in the dtype of the computation."""
    one: Params = like_cast(param_like(model, layout), model.dtype)["blocks"]
    split = layout.tensor_shards
    return memory.tree_bytes(one) // model.num_layers // split


def _loss_bytes(
    platform: Platform,
    settings: RunSettings,
    model: ModelConfig,
    layout: Layout,
    rows: int,
    length: int,
) -> int:
    """Returns the bytes of the output projection, its gradient, and logits that are computed at
    once.
    """
    width = jax.numpy.dtype(model.dtype).itemsize
    matrix, most = (model.vocab_size, model.embed_dim), settings.trainer.logits_bytes
    if layout.mesh.size > 1:
        with using(layout):
            plan = plan_of(matrix, (rows * layout.batch_shards, length - 1), 1.0, most)
        cuts = plan.cuts
        shard = plan.number * plan.size * model.embed_dim // cuts.size(cuts.embed)
        block = plan.size * cuts.size(cuts.shared)
        logits, kernel = 4 * rows * (length - 1) * block, block * model.embed_dim
        # The gradient's blocks, and then the gradient. A block and the next one are gathered.
        return shard * (width + 2 * 4) + kernel * (2 * width + 4) + _LOGITS_ARRAYS * logits
    position = 4 * rows * model.vocab_size
    whole = (length - 1) * position
    if platform == "cpu" and whole <= most:
        return 0  # They are kept, and count as activations.
    chunk = min(whole, max(position, most // position * position))
    # The matrix's gradient is accumulated over the chunks, beside that of the current chunk.
    copy = 0 if platform == "cpu" else width
    return math.prod(matrix) * (copy + 4) + _LOGITS_ARRAYS * chunk
