"""Memory of a program on an accelerator, estimated from shapes: nothing is compiled.

The parts are those that the compiled programs were seen to have (`benchmarks/compiled.py`); the
factors of working memory were fitted to them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import jax

from rl_sync.learning.critic import Critic
from rl_sync.learning.opt_state import opt_state_like
from rl_sync.models import lora, memory
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.runtime import wiring
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params


class Estimate(NamedTuple):
    """Bytes of a program on each device.

    Attributes:
      held: arrays that exist all the time, by name.
      work: temporary arrays of each phase, by name; phases are not at the same time.
    """

    held: dict[str, int]
    work: dict[str, int]

    @property
    def peak(self) -> int:
        """Returns the most bytes at any time."""
        return sum(self.held.values()) + max(self.work.values(), default=0)


def step_estimate(settings: RunSettings, task: Task, platform: Platform) -> Estimate:
    """Estimates the trainer's step on its largest batch."""
    model, layout = wiring.trainer_model(settings, task), settings.trainer_layout
    params = param_like(model, layout)
    trained = lora.split(params)[0] if model.lora else params
    updates = settings.optimizer.updates_per_batch
    batch = wiring.batching(settings, task.row_tokens).largest()
    batch_rows, row_tokens = batch.rows.tokens.shape
    micro = settings.trainer.microbatch_rows or batch_rows // updates
    rows = max(1, micro // layout.batch_shards)
    held = {"parameters": memory.device_bytes(params)}
    optimizer = settings.optimizer.reinforcement(settings.trainer.steps * updates)
    if not settings.trainer.offload_optimizer:
        held["optimizer"] = memory.device_bytes(opt_state_like(optimizer, trained, layout))
    if settings.algorithm.needs_reference and not settings.trainer.offload_reference:
        held["reference"] = memory.device_bytes(trained)
    if settings.algorithm.needs_values:
        steps = settings.trainer.steps * updates
        critic = Critic(settings.critic, model, settings.optimizer, steps, layout)
        state = critic.like(trained)
        held["critic"] = 2 * memory.device_bytes(state.params)  # With its gradients.
        held["critic's optimizer"] = memory.device_bytes(state.opt_state)
    held["gradients"] = memory.device_bytes(trained)
    held["batch"] = memory.tree_bytes(batch) // layout.batch_shards
    logits_bytes = settings.trainer.logits_bytes
    held["activations"] = _kept_bytes(platform, model, rows, row_tokens, logits_bytes)
    block = _block_bytes(platform, model, rows, row_tokens)
    work = {
        "a block": block + _layer_weights(model, layout),
        "the logits": _loss_bytes(settings, model, layout, rows, row_tokens),
    }
    return Estimate(held, work)


def decode_estimate(settings: RunSettings, task: Task, platform: Platform) -> Estimate:
    """Estimates an explorer's decode steps, with all slots in use."""
    model, layout = _rollout_model(settings, task), settings.explorer_layout
    with compiling_for(platform):
        cache = memory.cache_bytes(model, settings.slots, model.max_length, layout)
    held = {"parameters": _weights(model, layout), "KV cache": cache}
    return Estimate(held, {"sampling": _sampling_bytes(settings.slots, model, layout)})


def prefill_estimate(
    settings: RunSettings, task: Task, platform: Platform, prompts: tuple[int, int]
) -> Estimate:
    """Estimates an explorer's prefill of so many prompts of so many tokens, without its slots."""
    model, layout = _rollout_model(settings, task), settings.explorer_layout
    rows, tokens = prompts
    with compiling_for(platform):
        cache = memory.cache_bytes(model, rows, tokens, layout)
    held = {"parameters": _weights(model, layout), "keys and values": cache}
    # Gate and up are the largest arrays of a forward pass.
    width = 2 * model.mlp_dim * jax.numpy.dtype(model.dtype).itemsize
    mlp = math.ceil(rows * tokens / layout.mesh.size) * width
    return Estimate(held, {"a block": mlp})


def _rollout_model(settings: RunSettings, task: Task) -> ModelConfig:
    return lora.merged_config(wiring.explorer_model(settings, task))


def _weights(model: ModelConfig, layout: Layout) -> int:
    return memory.device_bytes(like_cast(param_like(model, layout), model.dtype))


@functools.cache
def _kept_bytes(
    platform: Platform, model: ModelConfig, rows: int, length: int, logits_bytes: int
) -> int:
    """Returns `memory.activation_bytes` on a platform."""
    # Kernels of attention keep the same on both; a GPU's asks for its library when it is traced.
    with compiling_for("cpu" if platform == "cpu" else "tpu"):
        return memory.activation_bytes(model, rows, length, logits_bytes)


def _block_bytes(platform: Platform, model: ModelConfig, rows: int, length: int) -> int:
    """Returns the bytes that the backward pass of one block keeps while it works."""

    def kept(layers: int) -> int:
        few = dataclasses.replace(
            model,
            num_layers=layers,
            remat="none",
            sliding_layers=model.sliding_layers[:layers],
        )
        return _kept_bytes(platform, few, rows, length, memory.LOGITS_BYTES)

    return kept(2) - kept(1)


def _layer_weights(model: ModelConfig, layout: Layout) -> int:
    """Returns the bytes of one layer's kernels, gathered, in the dtype of the computation."""
    one: Params = like_cast(param_like(model, layout), model.dtype)["blocks"]
    split = layout.tensor_shards
    return memory.tree_bytes(one) // model.num_layers // split


def _loss_bytes(
    settings: RunSettings, model: ModelConfig, layout: Layout, rows: int, length: int
) -> int:
    """Returns the bytes of the output projection, its gradient and a chunk of logits."""
    split = layout.tensor_shards
    kernel = model.vocab_size * model.embed_dim // split
    position = 4 * rows * model.vocab_size // split
    chunk = min(length * position, max(position, settings.trainer.logits_bytes))
    width = jax.numpy.dtype(model.dtype).itemsize
    return kernel * (width + 4) + 3 * chunk


def _sampling_bytes(slots: int, model: ModelConfig, layout: Layout) -> int:
    rows = math.ceil(slots / layout.mesh.size)
    return 4 * 4 * rows * model.vocab_size
