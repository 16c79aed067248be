"""Computes rooflines: the minimum time of a program at a chip's peak rates.

Operations and memory traffic are counted from the model's shape, since the compiler counts the body
of a loop once: 2·m·k·n for the product of an m × k and a k × n matrix, and nothing for other
operations. Collectives are read from the compiled program, with the loops around them.
Computation, memory traffic and asynchronous collectives may overlap; other collectives may not.
(Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from rl_sync.learning import objective
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import param_axes, param_shapes
from rl_sync.plan.chips import Rates
from rl_sync.plan.compiled_text import Collective, CompiledProgramText
from rl_sync.plan.memory import model_memory
from rl_sync.roles.assembly import wiring
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params

_BACKWARD = 2  # Matrix products in a backward pass for each one in the forward pass.


class Work(NamedTuple):
    """The work of one device.

    Attributes:
      flops: floating-point operations of matrix products.
      model_flops: the part of them that counts for MFU: the forward and the backward pass of
        trained parameters, without recomputation and passes of the reference model.
      traffic: bytes from and to its memory.
      links: bytes over its links in collectives that nothing overlaps.
      hidden_links: bytes over its links in asynchronous collectives.
    """

    flops: float
    model_flops: float
    traffic: float
    links: float = 0.0
    hidden_links: float = 0.0

    def secs(self, rates: Rates) -> float:
        """Returns the minimum time in seconds."""
        together = (
            self.flops / rates.flops,
            self.traffic / rates.bandwidth,
            self.hidden_links / rates.link,
        )
        return max(together) + self.links / rates.link

    def limit(self, rates: Rates) -> str:
        """Returns the name of the resource that takes most of the time."""
        times = {
            "computing": self.flops / rates.flops,
            "memory": self.traffic / rates.bandwidth,
            "links": (self.links + self.hidden_links) / rates.link,
        }
        return max(times, key=lambda name: times[name])

    def mfu(self, rates: Rates) -> float:
        """Returns the model FLOPs utilization at the minimum time.

        The operations are 6 for each token and parameter (4 for parameters of a frozen base), plus
        those of causal attention. They are divided by the number that the device could do in that
        time at its peak. (PaLM, arXiv:2204.02311, appendix B.)
        """
        return self.model_flops / (rates.flops * self.secs(rates))


def travelled(one: Collective) -> float:
    """Returns the bytes that a device sends in one run of a collective, by ring algorithms."""
    others = (one.group - 1) / one.group if one.group else 1.0
    factor = {
        "all-gather": others,
        "all-reduce": 2 * others,
        "reduce-scatter": others * one.group,
        "all-to-all": others,
        "ragged-all-to-all": others,
    }
    return one.bytes * factor.get(one.kind, 1.0)


def link_bytes(reading: CompiledProgramText, unknown_trips: int = 1) -> tuple[float, float]:
    """Returns the bytes that a device sends in all runs of a program's collectives.

    First come the bytes of collectives that nothing overlaps, then of asynchronous ones.

    Args:
      unknown_trips: assumed trip count of loops whose count the compiler does not know.
    """
    alone = hidden = 0.0
    for one in reading.collectives:
        sent = travelled(one) * math.prod(trips or unknown_trips for trips in one.loops)
        if one.asynchronous:
            hidden += sent
        else:
            alone += sent
    return alone, hidden


def step_work(
    settings: RunSettings, task: Task, reading: CompiledProgramText | None = None
) -> Work:
    """Counts the work of a trainer device in a step on the largest batch.

    Args:
      reading: the compiled step, whose collectives are counted; without it they follow from shapes.
    """
    model, layout = wiring.trainer_model(settings, task), settings.trainer_layout
    count, length = wiring.batching_of(settings, task).largest().rows.tokens.shape
    updates, algorithm = settings.optimizer.updates_per_batch, settings.algorithm
    microbatches = max(1, count // (settings.trainer.microbatch_rows or count // updates))
    untrained = algorithm.needs_reference + objective.needs_proximal(algorithm, updates)
    recomputed = _recomputed(model)
    # One pass over all rows, in which a token attends to half of its row on average.
    forward = count * length * (block_flops(model, length / 2) + logit_flops(model))
    trained = 1 + _BACKWARD
    sweeps = trained + untrained + recomputed
    # The backward pass of frozen parameters has no gradient of theirs, which is half of it.
    frozen = 0.0
    if model.lora:
        of_products = block_flops(model, 0) + logit_flops(model)
        frozen = count * length * of_products * _BACKWARD / 2
    devices, width = layout.mesh.size, 2 if model.dtype != "float32" else 4
    # Each device reads every weight shard that it computes with.
    abstract = _of_language_model(abstract_params(model, layout))
    whole = model_memory.tree_bytes(cast_abstract(abstract, model.dtype)) / layout.tensor_shards
    activations = count * length * block_traffic(model, width) / devices
    # Gradients are added to once per microbatch; parameters and both moments are read and written.
    learned = lora.split(abstract)[0] if model.lora else abstract
    held = model_memory.device_bytes(learned) * (2 * microbatches + 6)
    traffic = sweeps * (microbatches * whole + activations) + held
    links = (
        step_links(
            model,
            layout,
            (count, length),
            microbatches=microbatches,
            untrained=untrained,
        )
        if reading is None
        else link_bytes(reading)
    )
    flops, model_flops = forward * sweeps - frozen, forward * trained - frozen
    return Work(flops / devices, model_flops / devices, traffic, *links)


def decode_work(
    settings: RunSettings,
    task: Task,
    rows: int,
    span: int,
    reading: CompiledProgramText | None = None,
) -> Work:
    """Counts the work of an explorer device in one decode step of all rows.

    Args:
      span: number of cache positions that are read.
      reading: the compiled chunk of steps, whose collectives are counted; without it they follow
        from shapes.
    """
    model = lora.merged_config(wiring.explorer_model(settings, task))
    layout = settings.explorer_layout
    fed = rows * settings.rollout.step_tokens
    flops = fed * (block_flops(model, span) + logit_flops(model)) / layout.mesh.size
    read = _of_language_model(abstract_params(model, layout))
    weights = model_memory.device_bytes(cast_abstract(read, model.dtype))
    cache = model_memory.cache_bytes(model, rows, span, layout)
    if reading is None:
        alone, hidden = decode_links(model, layout, fed), 0.0
    else:
        chunk = settings.rollout.chunk_tokens
        alone, hidden = (sent / chunk for sent in link_bytes(reading, unknown_trips=chunk))
    return Work(flops, 0.0, float(weights + cache), alone, hidden)


def step_links(
    model: ModelConfig,
    layout: Layout,
    rows: tuple[int, int],
    *,
    microbatches: int,
    untrained: int,
) -> tuple[float, float]:
    """Counts the bytes that a device sends in a trainer step, by ring algorithms, from shapes.

    In each microbatch, parameters are gathered over `fsdp` for each pass, and gradients are
    scattered. Activations are summed over `tensor` twice in each block, and gradients over `data`
    once in each step.

    Args:
      rows: number of rows of the batch, and number of tokens of a row.
      microbatches: number of parts that the rows are computed in.
      untrained: number of passes without gradients, such as the reference model's.

    Returns:
      First the bytes of sums of activations, which the next product waits for; then all others,
      which can overlap with computation.
    """
    recomputed = _recomputed(model)
    sizes = layout.mesh.shape
    data, experts, context = sizes["data"], sizes["experts"], sizes["context"]
    fsdp = sizes["fsdp"] * context  # Parameters are cut along both.
    tensor = layout.tensor_shards
    width = 2 if model.dtype != "float32" else 4
    of_experts, others = _parameters(model)
    own = (others + of_experts / experts) / tensor
    gathers = microbatches * (2 + untrained) * width * own * (fsdp - 1) / fsdp
    scatters = microbatches * 4 * own * (fsdp - 1) / fsdp
    replicas = data * experts
    reduced = others * (replicas - 1) / replicas + of_experts / experts * (data - 1) / data
    tokens = math.prod(rows) / (data * fsdp * experts)
    sums = 2 * model.num_layers * (2 + untrained + recomputed)
    summed = tokens * model.embed_dim * width * sums * 2 * (tensor - 1) / tensor
    waited = summed + sums * _exchanged(model, layout, tokens, width)
    # Keys and values of a row are gathered, and their gradients summed, in each layer.
    keys = 2 * tokens * model.num_kv_heads * model.head_dim * width / tensor
    waited += model.num_layers * (3 + untrained + recomputed) * keys * (context - 1)
    # Hidden states of balanced rows are put in order once a pass, and their gradients balanced.
    waited += (2 + untrained) * tokens * model.embed_dim * width * (context > 1)
    return waited, gathers + scatters + 2 * 4 * reduced / (tensor * fsdp)


def decode_links(model: ModelConfig, layout: Layout, rows: int) -> float:
    """Counts the bytes that a device sends in a decode step, from shapes."""
    tensor = layout.tensor_shards
    own = rows * tensor / layout.mesh.size
    width = 2 if model.dtype != "float32" else 4
    summed = own * model.embed_dim * width * (2 * model.num_layers) * 2
    logits = own / tensor * model.vocab_size * 4
    exchanges = 2 * model.num_layers * _exchanged(model, layout, own, width)
    exchanges += model.num_layers * _combined(model, layout, own, width)
    return (summed + logits) * (tensor - 1) / tensor + exchanges


def _recomputed(model: ModelConfig) -> int:
    """Returns the number of forward passes that the backward pass repeats."""
    return int(model.remat == "full")


def _parameters(model: ModelConfig) -> tuple[int, int]:
    """Returns the number of parameters of a mixture's experts, and of the rest without vision."""
    both = (_of_language_model(of(model)) for of in (param_axes, param_shapes))
    axes, shapes = map(jax.tree.leaves, both)
    sizes = [math.prod(x.shape) for x in shapes]
    of_experts = sum(size for names, size in zip(axes, sizes, strict=True) if "experts" in names)
    return of_experts, sum(sizes) - of_experts


def _of_language_model(params: Params) -> Params:
    """Returns a tree of parameters without those of vision, which passes over text do not read."""
    return {name: value for name, value in params.items() if name != "vision"}


def _combined(model: ModelConfig, layout: Layout, rows: float, width: int) -> float:
    """Counts the bytes that a device sends for attention in one layer of a decode step.

    Devices that divide a cache gather queries and exchange results, with two numbers for each
    query (`rl_sync.models.slot_shares`).
    """
    shares = layout.grouped(model.num_kv_heads).slot_shares
    queries = rows * model.heads_per_kv
    results = queries * (model.head_dim + 2) * 4
    if model.heads_per_kv % shares:
        return results * (shares - 1)
    return (queries * model.head_dim * width + results) * (shares - 1) / shares


def _exchanged(model: ModelConfig, layout: Layout, tokens: float, width: int) -> float:
    """Counts the bytes that a device sends to bring its tokens to their experts, in one layer."""
    experts = layout.mesh.shape["experts"]
    if model.experts is None:
        return 0.0
    return tokens * model.experts.per_token * model.embed_dim * width * (experts - 1) / experts


def block_flops(config: ModelConfig, context: float) -> float:
    """Returns the operations of one token in all blocks, in the forward pass.

    Args:
      context: mean number of tokens that a token attends to, unless a smaller window limits it.
    """
    D, heads = config.embed_dim, config.num_heads * config.head_dim
    kernels = D * (heads + 2 * config.num_kv_heads * config.head_dim) + heads * D
    if config.experts:
        kernels += (
            D * config.experts.count + config.experts.per_token * 3 * D * config.experts.mlp_dim
        )
    else:
        kernels += 3 * D * config.mlp_dim
    slides = config.sliding_layers or (False,) * config.num_layers
    seen = sum(min(context, config.sliding_window) if one else context for one in slides)
    return 2.0 * kernels * config.num_layers + 4.0 * heads * seen


def logit_flops(config: ModelConfig) -> float:
    """Returns the operations of one token's logits, in the forward pass."""
    return 0.0 if config.scalar_head else 2.0 * config.embed_dim * config.vocab_size


def block_traffic(config: ModelConfig, itemsize: int) -> float:
    """Returns the bytes that a token's matrix products read and write in a forward pass.

    It counts the products of all blocks, but not the reading of kernels.
    """
    D, heads = config.embed_dim, config.num_heads * config.head_dim
    kv = 2 * config.num_kv_heads * config.head_dim
    attention = D + 2 * (heads + kv) + 2 * heads + D
    F = config.mlp_dim
    if config.experts:
        F = config.experts.per_token * config.experts.mlp_dim
    mlp = D + 2 * 2 * F + F + D
    return float(itemsize * config.num_layers * (attention + mlp))
